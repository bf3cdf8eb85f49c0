"""Numbered migrations of the schema."""
