"""Recipes: their parser, the registries of components, field help, recipes and suites that ship. Imports `runtime`."""
