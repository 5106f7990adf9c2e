"""Probes: small classifiers that read labels from frozen states. Of `analysis` it imports `base` and `beliefs`."""
