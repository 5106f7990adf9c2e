"""Action models: preconditions and effects, ground and lifted, and their folders."""
