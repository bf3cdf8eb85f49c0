"""Texts as vectors, as the handler `embed` makes them."""
