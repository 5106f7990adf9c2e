"""The loss of a vocabulary head, without storing many logits."""
