"""The version of statewise."""

__version__ = "0.1.0"
