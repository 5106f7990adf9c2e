"""Action models, ground and lifted: preconditions and effects, atoms one by one and in pairs, traces, the
folder of a learned model.

May import nothing else of `strips`, and `reporting.tables`.
"""
