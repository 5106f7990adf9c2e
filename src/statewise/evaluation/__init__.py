"""Held-out scores of a model: losses, task scores, infilling, zero-shot questions, judges. Never imports training."""
