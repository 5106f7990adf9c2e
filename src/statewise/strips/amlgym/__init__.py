"""AMLGym's benchmark: our learners and those of others on its domains.

May import `reporting.tables`, `exact`, `model`, `observed`, `pddl`, `trace_data` and `verification`.
"""
