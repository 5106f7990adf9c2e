"""Questions that a model answers by likelihood, without training on them: those of a file, and benchmarks of
lm-evaluation-harness (extra `eval`). Of `evaluation` it imports `scoring`.
"""
