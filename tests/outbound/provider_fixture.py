"""Fixtures: a fake provider, and our client of it."""

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
TRUST = ssl.create_default_context()  # Creating one takes longer than most tests.


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with open_fake_provider() as provider:
        yield provider


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_datetime(SystemClock().micros()))


@asynccontextmanager
async def open_provider(settings: Settings, clock: ManualClock, **options: Any) -> AsyncIterator[Provider]:
    provider = Provider(settings, clock, **{"ssl_context": TRUST, **options})
    try:
        yield provider
    finally:
        await provider.close()


@pytest.fixture
async def provider(fake: FakeProvider, clock: ManualClock) -> AsyncIterator[Provider]:
    async with open_provider(fake.settings(), clock) as opened:
        yield opened


async def fetch_person(provider: Provider, **changed: Any) -> Person:
    return await provider.fetch_person(**{"code": CODE, "nonce": NONCE, "verifier": VERIFIER, **changed})


async def expect_refusal(provider: Provider, message: str, **changed: Any) -> SignInRefused:
    with pytest.raises(SignInRefused, match=message) as caught:
        await fetch_person(provider, **changed)
    return caught.value


async def expect_unavailable(provider: Provider, message: str) -> ProviderUnavailable:
    with pytest.raises(ProviderUnavailable, match=message) as caught:
        await fetch_person(provider)
    return caught.value


def ada(fake: FakeProvider) -> Person:
    return Person(issuer=fake.issuer, subject="ada", email="ada@example.com", email_verified=True, groups=("staff",))
