"""Sequences from files of users: lines of text, JSON lines, CSV, event logs."""
