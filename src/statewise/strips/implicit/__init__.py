"""Learning from logs whose actions leave arguments out: the objects that these arguments are, and the schemas.

May import `exact`, `model`, `observed` and `trace_data`.
"""
