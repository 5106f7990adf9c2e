"""Action models as PDDL, text and pictures."""
