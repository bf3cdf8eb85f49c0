# Made of ingot.client.asynchronous by scripts/make_sync.py: change that, and run `make client`.
"""The client for those who await."""
