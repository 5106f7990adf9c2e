"""Processes whose beliefs are known exactly."""
