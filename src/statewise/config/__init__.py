"""Recipes: their parser, the registries of components, field help, and the recipes and suites that ship.

Imports `runtime`, and `run`, since a run holds a recipe.
"""
