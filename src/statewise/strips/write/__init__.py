"""Action models for people and planners: PDDL files, text, B-RASP programs and pictures.

May import `model`, `pddl`, `trace_data` and `verification`, and `reporting.plots` and `reporting.tables`.
"""
