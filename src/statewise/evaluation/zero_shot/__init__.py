"""Questions that a model answers by likelihood, without training on them: of a file, and of lm-evaluation-harness."""
