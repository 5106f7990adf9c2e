"""The world that a model implies: maps, detours, distinction and compression."""
