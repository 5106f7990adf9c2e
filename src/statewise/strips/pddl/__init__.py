"""PDDL: parsing and grounding."""
