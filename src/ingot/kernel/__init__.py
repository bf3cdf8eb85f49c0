"""Foundations of all rooms: IDs, time, errors, pages and loops. Imports no driver and no framework."""
