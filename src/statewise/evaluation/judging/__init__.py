"""Judging: a language model on a server decides which of two stories is better."""
