"""Sequences from files of users: lines of text, JSON lines, CSV, event logs. Of `tasks` it imports `base` and
`baselines`.
"""
