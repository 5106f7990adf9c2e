"""Judging: a language model behind a server says which of two stories is better."""
