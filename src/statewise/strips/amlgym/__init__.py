"""AMLGym's benchmark: our learners and those of others on its domains."""
