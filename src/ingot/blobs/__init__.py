"""Blobs: bytes named by their BLAKE3, with their uploads, keys, references and deletion."""
