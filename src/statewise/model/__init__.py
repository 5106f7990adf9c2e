"""The composition root: builds tasks and models from recipes, loads them from runs. It may import every room but
`beliefs`, `deploy`, `experiments`, `losses`, `reporting` and `strips`.
"""
