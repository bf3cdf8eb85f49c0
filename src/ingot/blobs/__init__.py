"""Blobs: bytes named by their BLAKE3, how they come in, the names tenants give them, and why they are kept."""
