"""Training: the loop, the optimiser, checkpoints, and the machine's capabilities."""
