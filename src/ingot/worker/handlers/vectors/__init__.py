"""Chunking and embedding of texts for the handler `embed`."""
