"""Planning with a learned model, and measuring how good the model is.

May import `exact`, `model`, `pddl`, `trace_data` and `verification`.
"""
