"""The provider client: authorization URLs, code exchange, userinfo, caching and TLS."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from ingot.kernel.clock import ManualClock
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.provider import FAILURE_CACHE_SECONDS, KEYS_REFRESH_SECONDS, METADATA_AGE_SECONDS_MAX, Provider
from tests.outbound.provider_fixture import (
    DISCOVERY,
    ada,
    clock,
    expect_refusal,
    expect_unavailable,
    fake,
    fetch_person,
    open_provider,
    provider,
)
from tests.providers.fake_provider import (
    CALLBACK,
    CODE,
    EC_KEY,
    OKP_KEY,
    OTHER_KEY,
    RSA_KEY,
    VERIFIER,
    FakeProvider,
    FakeResponse,
    make_certificate,
    open_fake_provider,
)

__all__ = ["clock", "fake", "provider"]


# Authorization URLs.


async def authorization(provider: Provider, **options: Any) -> tuple[str, dict[str, list[str]]]:
    endpoint, _, query = (
        await provider.authorization_url(state="s&s", nonce="n", verifier=VERIFIER, **options)
    ).partition("?")
    return endpoint, parse_qs(query, strict_parsing=True)


async def test_the_authorization_url_contains_a_pkce_challenge(fake: FakeProvider, provider: Provider) -> None:
    endpoint, parameters = await authorization(provider)
    assert endpoint == f"{fake.issuer}/authorize"
    assert parameters == {
        "response_type": ["code"],
        "client_id": ["ingot"],
        "redirect_uri": [CALLBACK],
        "scope": ["openid profile email"],
        "state": ["s&s"],
        "nonce": ["n"],
        "code_challenge": ["E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"],
        "code_challenge_method": ["S256"],
    }


async def test_a_silent_renewal_requests_no_prompt(provider: Provider) -> None:
    _, parameters = await authorization(provider, prompt="none")
    assert parameters["prompt"] == ["none"]


async def test_the_groups_scope_is_requested_if_the_provider_supports_it(
    fake: FakeProvider, provider: Provider
) -> None:
    fake.metadata["scopes_supported"] = ["openid", "groups"]
    _, parameters = await authorization(provider)
    assert parameters["scope"] == ["openid profile email groups"]


async def test_scopes_of_the_settings_are_requested_unchanged(fake: FakeProvider, clock: ManualClock) -> None:
    fake.metadata["scopes_supported"] = ["openid", "groups"]
    async with open_provider(fake.settings(oidc_scopes=("openid", "roles")), clock) as provider:
        _, parameters = await authorization(provider)
    assert parameters["scope"] == ["openid roles"]


async def test_an_authorization_endpoint_keeps_its_query(fake: FakeProvider, provider: Provider) -> None:
    fake.metadata["authorization_endpoint"] += "?realm=a"
    url = await provider.authorization_url(state="s", nonce="n", verifier=VERIFIER)
    assert url.startswith(f"{fake.issuer}/authorize?realm=a&response_type=code&")


# Code exchange.


@pytest.mark.parametrize(
    ("key", "alg"),
    [(RSA_KEY, "RS256"), (RSA_KEY, "PS384"), (EC_KEY, "ES256"), (OKP_KEY, "EdDSA"), (OKP_KEY, "Ed25519")],
)
async def test_a_person_is_identified_by_the_signed_token(
    fake: FakeProvider, provider: Provider, key: Any, alg: str
) -> None:
    fake.id_token = fake.sign(key, alg=alg)
    assert await fetch_person(provider) == ada(fake)
    assert "/userinfo" not in fake.paths()


@pytest.mark.parametrize(
    ("secret", "methods", "authentication"),
    [
        ("h:u%s h", ["client_secret_basic", "client_secret_post"], "basic"),
        ("h:u%s h", ["private_key_jwt"], "basic"),
        ("h:u%s h", None, "basic"),
        ("h:u%s h", ["client_secret_post"], "post"),
        (None, ["client_secret_basic", "none"], "none"),
    ],
)
async def test_a_code_is_exchanged_with_the_authentication_that_the_provider_supports(
    fake: FakeProvider, clock: ManualClock, secret: str | None, methods: list[str] | None, authentication: str
) -> None:
    fake.metadata["token_endpoint_auth_methods_supported"] = methods
    if methods is None:
        del fake.metadata["token_endpoint_auth_methods_supported"]
    async with open_provider(fake.settings(oidc_client_secret=secret), clock) as provider:
        await fetch_person(provider)
    (headers, form) = next((headers, form) for path, headers, form in fake.requests if path == "/token")
    exchange = {"grant_type": "authorization_code", "code": CODE, "redirect_uri": CALLBACK, "code_verifier": VERIFIER}
    if authentication == "basic":
        credentials = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
        assert (credentials, form) == ("ingot:h%3Au%25s+h", exchange)
    else:
        client = {"client_id": "ingot"} if secret is None else {"client_id": "ingot", "client_secret": secret}
        assert "authorization" not in headers
        assert form == exchange | client


async def test_claims_missing_in_the_token_are_read_from_userinfo(fake: FakeProvider, provider: Provider) -> None:
    fake.id_token = fake.sign(email=None, groups=None)
    fake.userinfo = {"sub": "ada", "email": "ada@example.com", "email_verified": True, "groups": ["staff"]}
    assert await fetch_person(provider) == ada(fake)
    assert fake.requests[-1][0] == "/userinfo"
    assert fake.requests[-1][1]["authorization"] == "Bearer the-access-token"


async def test_userinfo_of_another_person_is_rejected(fake: FakeProvider, provider: Provider) -> None:
    fake.id_token = fake.sign(email=None)
    fake.userinfo = {"sub": "eve", "email": "eve@example.com", "email_verified": True}
    await expect_refusal(provider, "different people")


async def test_a_provider_without_userinfo_gets_no_userinfo_request(fake: FakeProvider, provider: Provider) -> None:
    del fake.metadata["userinfo_endpoint"]
    fake.id_token = fake.sign(email=None)
    assert (await fetch_person(provider)).email is None


async def test_group_rules_of_the_settings_are_applied(fake: FakeProvider, clock: ManualClock) -> None:
    async with open_provider(fake.settings(oidc_allowed_groups=("ops",)), clock) as provider:
        await expect_refusal(provider, "allowed groups")
    async with open_provider(
        fake.settings(oidc_allowed_groups=("x",), oidc_admin_groups=("staff",)), clock
    ) as provider:
        assert await fetch_person(provider) == ada(fake)
    async with open_provider(fake.settings(oidc_groups_claim="roles", oidc_admin_groups=("a",)), clock) as provider:
        await expect_refusal(provider, "groups")


# Caching.


async def test_configuration_and_keys_are_fetched_once_an_hour(
    fake: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    fake.claims["exp"] += 10_000
    for _ in range(3):
        await fetch_person(provider)
    assert fake.paths() == [DISCOVERY, "/token", "/keys", "/token", "/token"]
    clock.advance(seconds=METADATA_AGE_SECONDS_MAX)
    await fetch_person(provider)
    assert fake.paths()[5:] == [DISCOVERY, "/token", "/keys"]


async def test_concurrent_sign_ins_fetch_the_configuration_once(fake: FakeProvider, provider: Provider) -> None:
    await asyncio.gather(*(fetch_person(provider) for _ in range(10)))
    assert (fake.paths().count(DISCOVERY), fake.paths().count("/keys")) == (1, 1)


async def test_a_new_key_replaces_the_old_one(fake: FakeProvider, provider: Provider, clock: ManualClock) -> None:
    await fetch_person(provider)
    fake.keys = [OTHER_KEY]
    clock.advance(seconds=KEYS_REFRESH_SECONDS)
    fake.id_token = fake.sign(OTHER_KEY)
    assert await fetch_person(provider) == ada(fake)
    fake.id_token = fake.sign(RSA_KEY)
    await expect_refusal(provider, "does not publish")


async def test_keys_are_fetched_again_for_unknown_keys_once_a_minute(
    fake: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    fake.id_token = fake.sign(OTHER_KEY)
    for _ in range(3):
        await expect_refusal(provider, "does not publish")
    assert fake.paths().count("/keys") == 1
    clock.advance(seconds=KEYS_REFRESH_SECONDS)
    for _ in range(3):
        await expect_refusal(provider, "does not publish")
    assert fake.paths().count("/keys") == 2


async def test_a_failed_provider_is_retried_after_some_seconds(
    fake: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    fake.overrides[DISCOVERY] = FakeResponse(b"", status=503)
    with pytest.raises(ProviderUnavailable):
        await asyncio.gather(*(fetch_person(provider) for _ in range(5)))
    await expect_unavailable(provider, "503")
    assert fake.paths() == [DISCOVERY]
    del fake.overrides[DISCOVERY]
    clock.advance(seconds=FAILURE_CACHE_SECONDS)
    assert await fetch_person(provider) == ada(fake)


async def test_no_cookie_of_one_sign_in_is_sent_in_the_next(fake: FakeProvider, provider: Provider) -> None:
    fake.id_token = fake.sign(email=None)
    tokens = {"id_token": fake.id_token, "access_token": "the-access-token"}
    fake.overrides["/token"] = FakeResponse(tokens, headers={"set-cookie": "session=of-ada; Path=/"})
    for _ in range(2):
        await fetch_person(provider)
    assert [headers for _, headers, _ in fake.requests if "cookie" in headers] == []


# TLS.


async def test_a_provider_with_an_untrusted_certificate_is_unavailable(tmp_path: Path, clock: ManualClock) -> None:
    async with (
        open_fake_provider(make_certificate(tmp_path / "certificate.pem")) as fake,
        open_provider(fake.settings(), clock, ssl_context=None) as provider,
    ):
        await expect_unavailable(provider, "configuration")
        assert fake.requests == []


@pytest.fixture
async def fake_on_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeProvider]:
    """A provider on https whose certificate is trusted."""
    certificate = make_certificate(tmp_path / "certificate.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with open_fake_provider(certificate) as provider:
        yield provider


async def test_a_provider_with_a_trusted_certificate_is_used(fake_on_https: FakeProvider, clock: ManualClock) -> None:
    async with open_provider(fake_on_https.settings(), clock, ssl_context=None) as provider:
        assert await fetch_person(provider) == ada(fake_on_https)


async def test_a_provider_on_https_cannot_have_endpoints_without_it(
    fake_on_https: FakeProvider, clock: ManualClock
) -> None:
    fake_on_https.metadata["token_endpoint"] = "http://127.0.0.1:1/token"
    async with open_provider(fake_on_https.settings(), clock, ssl_context=None) as provider:
        await expect_unavailable(provider, "token_endpoint")
