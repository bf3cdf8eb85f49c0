"""OpenID providers for the tests: a real one, and one that says what it is told."""

from tests.providers.liar import Liar, lying_provider
from tests.providers.real import RealProvider, real_provider

__all__ = ["Liar", "RealProvider", "lying_provider", "real_provider"]
