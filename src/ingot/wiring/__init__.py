"""Wiring: the only room that names concrete classes. Who runs a worker does not read the server."""
