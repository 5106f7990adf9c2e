"""Hidden Markov processes with known beliefs: published ones, products, mixtures, your own matrices."""
