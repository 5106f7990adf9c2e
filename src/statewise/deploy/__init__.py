"""Models that leave statewise: a server, a page that shows models at work, exports for other libraries.

Imports `analysis`, `backbones`, `config`, `decoding`, `losses`, `model`, `objectives`, `reporting.figures`, `tasks` and
`training.machine`; never `evaluation`, `experiments`, `run` or `cli`.
"""
