"""Models that carry a state from chunk to chunk: how they are asked, whole documents, and states kept as files."""
