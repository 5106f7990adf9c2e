"""Exact learning by SAT, and what is certain about a trace; no training.

May import `model` and `verification`.
"""
