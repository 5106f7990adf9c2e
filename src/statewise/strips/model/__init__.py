"""Action models, ground and lifted: preconditions and effects, single atoms, traces, and the folder of a learned model.

May import nothing else of `strips`.
"""
