"""Exact comparison of action models: containment, equivalence, simplification.

May import `model` and `trace_data`.
"""
