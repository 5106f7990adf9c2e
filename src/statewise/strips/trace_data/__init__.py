"""Traces: files, plan texts, random walks, and the known domains that they are drawn from.

May import `model`.
"""
