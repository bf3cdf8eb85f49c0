"""Shapes on the wire: what requests say, and what answers say where that is no model of a room."""
