"""One training run or many: launching, dry runs, seeds, suites, clusters, and what is done with trained runs.

May import every room of models and data but `beliefs`, `losses` and `strips`, and `reporting`; only `cli` imports it.
Its Python face is `statewise` itself: `statewise.train`, `statewise.seeds`, `statewise.suite`, `statewise.compare`,
`statewise.status`.
"""
