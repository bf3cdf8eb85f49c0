"""Tests of outgoing requests, against a real server that lies."""
