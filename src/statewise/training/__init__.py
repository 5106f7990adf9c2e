"""Training: the loop, the optimiser, checkpoints, and what the machine is good at."""
