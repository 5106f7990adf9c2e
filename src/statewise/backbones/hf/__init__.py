"""Causal language models of Hugging Face transformers as backbones."""
