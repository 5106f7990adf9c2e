"""The machine and the operating system: files, locks, JSON and YAML, bounds, messages, progress, extras, launchers, and
copies to devices. Knows nothing about models; imports no other room.
"""
