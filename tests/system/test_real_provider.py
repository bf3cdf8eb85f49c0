"""Sign-in with a real provider: the certified `oidc-provider` of npm, on a local port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import SystemClock
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.provider import Provider
from ingot.settings import Settings
from tests.providers.real_provider import BASIC, CLIENT_SECRET, POST, RealProvider, real_provider

pytestmark = [pytest.mark.node, pytest.mark.provider]

CALLBACK = "http://127.0.0.1:9/auth/callback"
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"


@pytest.fixture
async def real() -> AsyncIterator[RealProvider]:
    async with real_provider(CALLBACK) as one:
        yield one


@asynccontextmanager
async def open_provider(settings: Settings) -> AsyncIterator[Provider]:
    provider = Provider(settings, SystemClock())
    try:
        yield provider
    finally:
        await provider.close()


async def authorize(
    real: RealProvider, provider: Provider, login: str, client: httpx.AsyncClient | None = None, **options: Any
) -> dict[str, str]:
    """Sign in at the provider, and return the query of the callback."""
    url = await provider.authorization_url(state="the-state", nonce="n", verifier=VERIFIER, **options)
    answer = await real.sign_in(url, login, client)
    assert answer["state"] == "the-state"
    assert answer["iss"] == real.issuer
    return answer


async def sign_in(
    real: RealProvider, provider: Provider, login: str, client: httpx.AsyncClient | None = None, **options: Any
) -> Person:
    answer = await authorize(real, provider, login, client, **options)
    return await provider.fetch_person(code=answer["code"], nonce="n", verifier=VERIFIER, iss=answer["iss"])


def ada(real: RealProvider) -> Person:
    return Person(
        issuer=real.issuer,
        subject="ada",
        email="ada@example.com",
        email_verified=True,
        name="Ada Lovelace",
        groups=("ops", "staff"),
    )


@pytest.mark.parametrize(
    ("secret", "methods"),
    [(CLIENT_SECRET, (BASIC, POST)), (CLIENT_SECRET, (BASIC,)), (CLIENT_SECRET, (POST,)), (None, (BASIC,))],
)
@pytest.mark.parametrize("claims_in_token", [False, True])
async def test_people_sign_in_with_every_client_authentication_method(
    secret: str | None, methods: tuple[str, ...], claims_in_token: bool
) -> None:
    options: dict[str, Any] = {"client_secret": secret, "methods": methods, "claims_in_token": claims_in_token}
    async with real_provider(CALLBACK, **options) as real, open_provider(real.settings()) as provider:
        assert await sign_in(real, provider, "ada") == ada(real)


async def test_a_code_can_be_used_once(real: RealProvider) -> None:
    async with open_provider(real.settings()) as provider:
        answer = await authorize(real, provider, "ada")
        arguments = {"code": answer["code"], "nonce": "n", "verifier": VERIFIER, "iss": answer["iss"]}
        await provider.fetch_person(**arguments)
        with pytest.raises(SignInRefused, match="invalid_grant"):
            await provider.fetch_person(**arguments)


async def test_a_code_is_bound_to_verifier_nonce_and_issuer(real: RealProvider) -> None:
    async with open_provider(real.settings()) as provider:
        answer = await authorize(real, provider, "ada")
        with pytest.raises(SignInRefused, match="invalid_grant"):
            await provider.fetch_person(code=answer["code"], nonce="n", verifier="w" * 43, iss=answer["iss"])
        answer = await authorize(real, provider, "ada")
        with pytest.raises(SignInRefused, match="nonce"):
            await provider.fetch_person(code=answer["code"], nonce="m", verifier=VERIFIER, iss=answer["iss"])
        answer = await authorize(real, provider, "ada")
        with pytest.raises(SignInRefused, match=r"\(iss\)"):
            await provider.fetch_person(code=answer["code"], nonce="n", verifier=VERIFIER)


async def test_a_wrong_client_secret_is_reported_as_a_server_problem(real: RealProvider) -> None:
    real.client_secret = "another"
    async with open_provider(real.settings()) as provider:
        answer = await authorize(real, provider, "ada")
        with pytest.raises(ProviderUnavailable, match="invalid_client") as caught:
            await provider.fetch_person(code=answer["code"], nonce="n", verifier=VERIFIER, iss=answer["iss"])
    assert "INGOT_OIDC_CLIENT_SECRET" in caught.value.hint


async def test_allowed_groups_are_checked_at_every_sign_in(real: RealProvider) -> None:
    settings = real.settings(oidc_allowed_groups=("staff",), oidc_admin_groups=("ops",))
    async with open_provider(settings) as provider, httpx.AsyncClient(verify=False) as browser:
        assert (await sign_in(real, provider, "bob", browser)).groups == ("staff",)
        with pytest.raises(SignInRefused, match="allowed groups"):
            await sign_in(real, provider, "eve")
        await real.put_account("bob", groups=["visitors"])
        with pytest.raises(SignInRefused, match="allowed groups"):
            await sign_in(real, provider, "bob", browser, prompt="none")


async def test_an_unverified_email_is_refused(real: RealProvider) -> None:
    await real.put_account("bob", email_verified=False)
    async with open_provider(real.settings()) as provider:
        with pytest.raises(SignInRefused, match="not verified"):
            await sign_in(real, provider, "bob")


async def test_a_silent_sign_in_succeeds_with_a_provider_session(real: RealProvider) -> None:
    async with open_provider(real.settings()) as provider, httpx.AsyncClient(verify=False) as browser:
        assert await sign_in(real, provider, "ada", browser) == ada(real)
        url = await provider.authorization_url(state="s", nonce="n", verifier=VERIFIER, prompt="none")
        answer = await browser.get(url)
        assert answer.is_redirect
        assert answer.headers["location"].startswith(CALLBACK)


async def test_a_silent_sign_in_fails_without_a_provider_session(real: RealProvider) -> None:
    async with open_provider(real.settings()) as provider, httpx.AsyncClient(verify=False) as browser:
        answer = await browser.get(
            await provider.authorization_url(state="s", nonce="n", verifier=VERIFIER, prompt="none")
        )
    query = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    assert (query["error"], query["state"]) == ("login_required", "s")


def test_the_lock_file_of_the_provider_contains_no_urls() -> None:
    lock = (Path(__file__).parents[1] / "providers" / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in lock
    assert '"resolved"' not in lock
    assert lock.count('"integrity"') == lock.count('"node_modules/')
