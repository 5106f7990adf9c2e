"""Finite automata: state tracking and languages."""
