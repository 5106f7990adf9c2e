"""Probes: what can be read off the states of a model."""
