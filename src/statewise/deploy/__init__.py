"""Models that leave: server, playground, exports. Imports every room but `experiments` and `cli`."""
