"""A provider that can lie, and our side of it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import ManualClock, SystemClock, to_datetime
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.provider import Provider
from ingot.settings import Settings
from tests.providers.fake_provider import CODE, NONCE, VERIFIER, FakeProvider, open_fake_provider

DISCOVERY = "/.well-known/openid-configuration"
TRUST = ssl.create_default_context()  # Takes longer to make than most tests.


@pytest.fixture
async def idp() -> AsyncIterator[FakeProvider]:
    async with open_fake_provider() as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_datetime(SystemClock().micros()))


@asynccontextmanager
async def opened(settings: Settings, clock: ManualClock, **options: Any) -> AsyncIterator[Provider]:
    provider = Provider(settings, clock, **{"ssl_context": TRUST, **options})
    try:
        yield provider
    finally:
        await provider.close()


@pytest.fixture
async def provider(idp: FakeProvider, clock: ManualClock) -> AsyncIterator[Provider]:
    async with opened(idp.settings(), clock) as one:
        yield one


async def person(provider: Provider, **changed: Any) -> Person:
    return await provider.fetch_person(**{"code": CODE, "nonce": NONCE, "verifier": VERIFIER, **changed})


async def refused(provider: Provider, said: str, **changed: Any) -> SignInRefused:
    with pytest.raises(SignInRefused, match=said) as caught:
        await person(provider, **changed)
    return caught.value


async def unavailable(provider: Provider, said: str) -> ProviderUnavailable:
    with pytest.raises(ProviderUnavailable, match=said) as caught:
        await person(provider)
    return caught.value


def ada(idp: FakeProvider) -> Person:
    return Person(issuer=idp.issuer, subject="ada", email="ada@example.com", email_verified=True, groups=("staff",))
