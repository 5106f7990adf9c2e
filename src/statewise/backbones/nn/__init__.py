"""Network components: masks, attention, blocks, caches. Imports no other part of `backbones`."""
