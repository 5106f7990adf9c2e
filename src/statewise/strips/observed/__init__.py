"""Learning from observed states: bounds on each schema, and the model that is chosen within them.

May import `exact` and `model`.
"""
