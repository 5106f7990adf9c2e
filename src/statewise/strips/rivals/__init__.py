"""Other learners of action models, for comparison."""
