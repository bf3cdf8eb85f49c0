"""Outbound: requests to other services."""
