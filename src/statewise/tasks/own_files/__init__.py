"""Sequences from files of users."""
