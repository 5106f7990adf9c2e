"""Network components: masks, attention, blocks, caches."""
