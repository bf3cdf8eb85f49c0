"""Outbound: what we ask of others over the network."""
