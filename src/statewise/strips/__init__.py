"""STRIPS world models from action traces: a wing of its own, which loads without the rest of the package.

`statewise strips VERB` on the command line is `statewise.strips.VERB.VERB` in Python.
"""
