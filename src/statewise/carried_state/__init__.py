"""Models that carry a state from chunk to chunk: evaluation protocols, whole documents, and states kept in files."""
