"""Whether anything but the past changes a state of a causal model, and which module is the first to let it in.

Of `backbones` it imports `base` and `nn`.
"""
