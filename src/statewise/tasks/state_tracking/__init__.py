"""Finite automata: state tracking and languages. Of `tasks` it imports `automaton`, `base`, `holding_out` and
`own_files`.
"""
