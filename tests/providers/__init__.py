"""OpenID providers for the tests: a real one, and one that says what it is told."""

from tests.providers.fake_provider import FakeProvider, open_fake_provider
from tests.providers.real_provider import RealProvider, real_provider

__all__ = ["FakeProvider", "RealProvider", "open_fake_provider", "real_provider"]
