"""Pieces of networks: masks, attention, blocks, caches."""
