"""Hidden Markov processes with known beliefs: published ones, products, mixtures, your own matrices. Of `tasks` it
imports `automaton`, `base` and `own_files`.
"""
