"""Comparing an action model with a true one, exactly."""
