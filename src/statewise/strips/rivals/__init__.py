"""Learners by others, for comparison: LOCM and SIFT.

May import `exact` and `model`.
"""
