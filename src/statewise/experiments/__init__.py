"""One training run or many: launching, dry runs, seeds, suites, clusters, decode speed.

Imports every room but `deploy` and `cli`.
"""
