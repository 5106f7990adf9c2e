"""Exact learning of action models by SAT, without training."""
