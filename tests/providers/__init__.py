"""OpenID providers for the tests."""
