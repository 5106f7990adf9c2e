"""Causal language models of Hugging Face transformers as backbones. Of `backbones` it imports `base`, `capabilities`
and `nn`.
"""
