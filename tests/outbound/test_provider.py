"""Our side of signing in by a provider: who is sent there, who comes back, and what is asked how often."""

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
from tests.outbound.provider_fixture import DISCOVERY, ada, clock, idp, opened, person, provider, refused, unavailable
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

__all__ = ["clock", "idp", "provider"]


# The way there.


async def begun(provider: Provider, **options: Any) -> tuple[str, dict[str, list[str]]]:
    place, _, query = (
        await provider.authorization_url(state="s&s", nonce="n", verifier=VERIFIER, **options)
    ).partition("?")
    return place, parse_qs(query, strict_parsing=True)


async def test_people_are_sent_to_the_provider_with_a_challenge(idp: FakeProvider, provider: Provider) -> None:
    place, asked = await begun(provider)
    assert place == f"{idp.issuer}/authorize"
    assert asked == {
        "response_type": ["code"],
        "client_id": ["ingot"],
        "redirect_uri": [CALLBACK],
        "scope": ["openid profile email"],
        "state": ["s&s"],
        "nonce": ["n"],
        "code_challenge": ["E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"],
        "code_challenge_method": ["S256"],
    }


async def test_a_silent_way_asks_the_provider_to_show_nothing(provider: Provider) -> None:
    _, asked = await begun(provider, prompt="none")
    assert asked["prompt"] == ["none"]


async def test_groups_are_asked_for_where_the_provider_has_them(idp: FakeProvider, provider: Provider) -> None:
    idp.metadata["scopes_supported"] = ["openid", "groups"]
    _, asked = await begun(provider)
    assert asked["scope"] == ["openid profile email groups"]


async def test_scopes_of_the_settings_are_asked_for_as_they_are(idp: FakeProvider, clock: ManualClock) -> None:
    idp.metadata["scopes_supported"] = ["openid", "groups"]
    async with opened(idp.settings(oidc_scopes=("openid", "roles")), clock) as provider:
        _, asked = await begun(provider)
    assert asked["scope"] == ["openid roles"]


async def test_an_address_with_a_query_of_its_own_keeps_it(idp: FakeProvider, provider: Provider) -> None:
    idp.metadata["authorization_endpoint"] += "?realm=a"
    url = await provider.authorization_url(state="s", nonce="n", verifier=VERIFIER)
    assert url.startswith(f"{idp.issuer}/authorize?realm=a&response_type=code&")


# The way back.


@pytest.mark.parametrize(
    ("key", "alg"),
    [(RSA_KEY, "RS256"), (RSA_KEY, "PS384"), (EC_KEY, "ES256"), (OKP_KEY, "EdDSA"), (OKP_KEY, "Ed25519")],
)
async def test_who_comes_back_is_who_the_token_says(idp: FakeProvider, provider: Provider, key: Any, alg: str) -> None:
    idp.id_token = idp.sign(key, alg=alg)
    assert await person(provider) == ada(idp)
    assert "/userinfo" not in idp.paths()


@pytest.mark.parametrize(
    ("secret", "methods", "proof"),
    [
        ("h:u%s h", ["client_secret_basic", "client_secret_post"], "basic"),
        ("h:u%s h", ["private_key_jwt"], "basic"),
        ("h:u%s h", None, "basic"),
        ("h:u%s h", ["client_secret_post"], "post"),
        (None, ["client_secret_basic", "none"], "none"),
    ],
)
async def test_a_code_is_exchanged_with_the_proof_that_the_provider_takes(
    idp: FakeProvider, clock: ManualClock, secret: str | None, methods: list[str] | None, proof: str
) -> None:
    idp.metadata["token_endpoint_auth_methods_supported"] = methods
    if methods is None:
        del idp.metadata["token_endpoint_auth_methods_supported"]
    async with opened(idp.settings(oidc_client_secret=secret), clock) as provider:
        await person(provider)
    (headers, form) = next((headers, form) for path, headers, form in idp.asked if path == "/token")
    sent = {"grant_type": "authorization_code", "code": CODE, "redirect_uri": CALLBACK, "code_verifier": VERIFIER}
    if proof == "basic":
        told = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
        assert (told, form) == ("ingot:h%3Au%25s+h", sent)
    else:
        known = {"client_id": "ingot"} if secret is None else {"client_id": "ingot", "client_secret": secret}
        assert "authorization" not in headers
        assert form == sent | known


async def test_what_the_token_leaves_out_is_asked_for(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(email=None, groups=None)
    idp.userinfo = {"sub": "ada", "email": "ada@example.com", "email_verified": True, "groups": ["staff"]}
    assert await person(provider) == ada(idp)
    assert idp.asked[-1][0] == "/userinfo"
    assert idp.asked[-1][1]["authorization"] == "Bearer the-access-token"


async def test_what_is_told_of_somebody_else_is_refused(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(email=None)
    idp.userinfo = {"sub": "eve", "email": "eve@example.com", "email_verified": True}
    await refused(provider, "different people")


async def test_a_provider_without_userinfo_is_not_asked(idp: FakeProvider, provider: Provider) -> None:
    del idp.metadata["userinfo_endpoint"]
    idp.id_token = idp.sign(email=None)
    assert (await person(provider)).email is None


async def test_the_rules_of_the_settings_hold(idp: FakeProvider, clock: ManualClock) -> None:
    async with opened(idp.settings(oidc_allowed_groups=("ops",)), clock) as provider:
        await refused(provider, "allowed groups")
    async with opened(idp.settings(oidc_allowed_groups=("x",), oidc_admin_groups=("staff",)), clock) as provider:
        assert await person(provider) == ada(idp)
    async with opened(idp.settings(oidc_groups_claim="roles", oidc_admin_groups=("a",)), clock) as provider:
        await refused(provider, "groups")


# What is remembered.


async def test_configuration_and_keys_are_asked_for_once_an_hour(
    idp: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    idp.claims["exp"] += 10_000
    for _ in range(3):
        await person(provider)
    assert idp.paths() == [DISCOVERY, "/token", "/keys", "/token", "/token"]
    clock.advance(seconds=METADATA_AGE_SECONDS_MAX)
    await person(provider)
    assert idp.paths()[5:] == [DISCOVERY, "/token", "/keys"]


async def test_many_who_come_together_ask_once(idp: FakeProvider, provider: Provider) -> None:
    await asyncio.gather(*(person(provider) for _ in range(10)))
    assert (idp.paths().count(DISCOVERY), idp.paths().count("/keys")) == (1, 1)


async def test_a_new_key_is_found_and_the_old_one_forgotten(
    idp: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    await person(provider)
    idp.keys = [OTHER_KEY]
    clock.advance(seconds=KEYS_REFRESH_SECONDS)
    idp.id_token = idp.sign(OTHER_KEY)
    assert await person(provider) == ada(idp)
    idp.id_token = idp.sign(RSA_KEY)
    await refused(provider, "does not publish")


async def test_unknown_keys_are_looked_for_once_a_minute(
    idp: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    idp.id_token = idp.sign(OTHER_KEY)
    for _ in range(3):
        await refused(provider, "does not publish")
    assert idp.paths().count("/keys") == 1
    clock.advance(seconds=KEYS_REFRESH_SECONDS)
    for _ in range(3):
        await refused(provider, "does not publish")
    assert idp.paths().count("/keys") == 2


async def test_a_provider_that_failed_is_asked_again_after_a_moment(
    idp: FakeProvider, provider: Provider, clock: ManualClock
) -> None:
    idp.instead[DISCOVERY] = FakeResponse(b"", status=503)
    with pytest.raises(ProviderUnavailable):
        await asyncio.gather(*(person(provider) for _ in range(5)))
    await unavailable(provider, "503")
    assert idp.paths() == [DISCOVERY]
    del idp.instead[DISCOVERY]
    clock.advance(seconds=FAILURE_CACHE_SECONDS)
    assert await person(provider) == ada(idp)


async def test_no_cookie_of_one_sign_in_is_sent_in_the_next(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(email=None)
    tokens = {"id_token": idp.id_token, "access_token": "the-access-token"}
    idp.instead["/token"] = FakeResponse(tokens, headers={"set-cookie": "session=of-ada; Path=/"})
    for _ in range(2):
        await person(provider)
    assert [headers for _, headers, _ in idp.asked if "cookie" in headers] == []


# Who answers.


async def test_a_provider_that_cannot_prove_its_name_is_not_reached(tmp_path: Path, clock: ManualClock) -> None:
    async with (
        open_fake_provider(make_certificate(tmp_path / "certificate.pem")) as idp,
        opened(idp.settings(), clock, ssl_context=None) as provider,
    ):
        await unavailable(provider, "configuration")
        assert idp.asked == []


@pytest.fixture
async def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeProvider]:
    """A provider on https, whose certificate this machine trusts."""
    certificate = make_certificate(tmp_path / "certificate.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with open_fake_provider(certificate) as one:
        yield one


async def test_a_provider_that_proves_its_name_to_this_machine_is_asked(
    proven: FakeProvider, clock: ManualClock
) -> None:
    async with opened(proven.settings(), clock, ssl_context=None) as provider:
        assert await person(provider) == ada(proven)


async def test_a_provider_on_https_has_no_place_without_it(proven: FakeProvider, clock: ManualClock) -> None:
    proven.metadata["token_endpoint"] = "http://127.0.0.1:1/token"
    async with opened(proven.settings(), clock, ssl_context=None) as provider:
        await unavailable(provider, "token_endpoint")
