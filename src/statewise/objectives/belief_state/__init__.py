"""The Belief State Transformer: losses on pairs of a prefix and a suffix. Of `objectives` it imports `base`,
`predictors` and `targets`.
"""
