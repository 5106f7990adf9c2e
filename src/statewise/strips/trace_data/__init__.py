"""Traces of actions: files, random walks, known domains."""
