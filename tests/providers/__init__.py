"""OpenID providers for the tests: a real one, and a fake one whose responses a test sets."""

from tests.providers.fake_provider import FakeProvider, open_fake_provider
from tests.providers.real_provider import RealProvider, real_provider

__all__ = ["FakeProvider", "RealProvider", "open_fake_provider", "real_provider"]
