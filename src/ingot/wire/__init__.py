"""Structs of HTTP requests and responses, except the responses that are models of a room."""
