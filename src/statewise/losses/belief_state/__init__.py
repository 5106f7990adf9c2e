"""The Belief State Transformer's loss: pairs of a prefix and a suffix, their blocks, and the text heads. Of `losses` it
imports `sequence_loss` and `targets`.
"""
