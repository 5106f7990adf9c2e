"""The version of statewise."""

__version__ = "0.2.0"
