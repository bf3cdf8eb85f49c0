"""Tests of outgoing requests to an OpenID provider whose responses may be wrong."""
