"""Numbered steps of the schema."""
