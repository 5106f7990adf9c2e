"""The world that a model implies: maps, detours, distinction, compression, inductive bias. Of `analysis` it imports
`base`, `beliefs` and `probes`.
"""
