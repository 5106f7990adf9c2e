"""PDDL: parsing, grounding and writing.

May import `model` and `trace_data`.
"""
