"""The composition root: builds tasks and models from recipes, loads them from runs. Imports every room below it."""
