"""Taxi rides through a city of one-way streets: a world whose map is known, on Manhattan or on a grid of our own."""
