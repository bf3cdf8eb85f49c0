"""The client for those who await."""
