"""Planning with a learned model, and judging it."""
