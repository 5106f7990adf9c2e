"""The machine and the operating system: files, locks, JSON, messages, progress. Imports no other room."""
