"""A language model on a server judges which of two stories is better. Imports no other part of `evaluation`."""
