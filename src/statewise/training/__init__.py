"""Training: the loop, the optimisers, checkpoints, and what this machine can do.

Imports `config`, `run`, `objectives.base` and `tasks.batches`; never a backbone, an analysis or a score of answers.
"""
