"""The exact belief about a hidden process, and where models keep it. Of `analysis` it imports `base`."""
