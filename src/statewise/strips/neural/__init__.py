"""Learning by gradient descent: the STRIPS Transformer, ground and lifted.

May import `model` and `verification`.
"""
