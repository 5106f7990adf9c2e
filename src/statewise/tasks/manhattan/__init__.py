"""Taxi rides through a city of one-way streets: a world whose map is known, Manhattan or a generated grid. Of
`tasks` it imports `automaton`, `base`, `holding_out` and `own_files`.
"""
