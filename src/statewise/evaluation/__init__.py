"""Held-out scores of a model: losses, task scores, infilling, zero-shot questions, judges.

Imports `config`, `decoding`, `reporting.statistics` and `tasks`. It takes a predictor and a task, never a run, and
does not depend on training.
"""
