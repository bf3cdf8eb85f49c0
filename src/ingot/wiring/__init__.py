"""Wiring: the only package that names concrete classes. A worker imports no module of the server."""
