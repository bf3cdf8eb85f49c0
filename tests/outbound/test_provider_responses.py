"""Wrong responses of a provider: malformed, dishonest, missing, or of another issuer."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from ingot.identity.people import SignInRefused
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import IngotError
from ingot.outbound.bounded_http import RESPONSE_BYTES_MAX
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.provider import Provider
from ingot.settings import Settings
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
    CODE,
    NONCE,
    OTHER_KEY,
    VERIFIER,
    FakeProvider,
    FakeResponse,
    open_fake_provider,
)

__all__ = ["clock", "fake", "provider"]


# Responses of another issuer.


async def test_a_callback_of_another_issuer_is_rejected_before_its_code_is_used(
    fake: FakeProvider, provider: Provider
) -> None:
    for iss in ("https://evil.example.com", fake.issuer + "/", ""):
        await expect_refusal(provider, "iss", iss=iss)
    assert "/token" not in fake.paths()
    assert await fetch_person(provider, iss=fake.issuer) == ada(fake)


async def test_a_callback_without_an_issuer_is_rejected_if_the_provider_announced_it(
    fake: FakeProvider, provider: Provider
) -> None:
    fake.metadata["authorization_response_iss_parameter_supported"] = True
    await expect_refusal(provider, "iss")
    assert "/token" not in fake.paths()
    assert await fetch_person(provider, iss=fake.issuer) == ada(fake)


@pytest.mark.parametrize("code", ["a\nb", "\ud800", "é", "\x00"])
async def test_an_invalid_code_is_not_sent(fake: FakeProvider, provider: Provider, code: str) -> None:
    await expect_refusal(provider, "code", code=code)
    assert "/token" not in fake.paths()


@pytest.mark.parametrize("name", ["/", "x", ".evil.example.com"])
async def test_a_configuration_of_another_issuer_is_rejected(fake: FakeProvider, provider: Provider, name: str) -> None:
    fake.metadata["issuer"] += name
    error = await expect_unavailable(provider, "INGOT_OIDC_ISSUER")
    assert "INGOT_OIDC_ISSUER" in error.hint
    again = await expect_unavailable(provider, "INGOT_OIDC_ISSUER")
    assert again.hint == error.hint


async def test_an_issuer_with_a_trailing_slash_is_supported(fake: FakeProvider, clock: ManualClock) -> None:
    fake.metadata["issuer"] = fake.issuer + "/"
    fake.claims["iss"] = fake.issuer + "/"
    async with open_provider(Settings(**{**_settings_of(fake), "oidc_issuer": fake.issuer + "/"}), clock) as provider:
        assert (await fetch_person(provider)).issuer == fake.issuer + "/"


def _settings_of(fake: FakeProvider) -> dict[str, Any]:
    settings = fake.settings()
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://login.example.com/x", "ftp://127.0.0.1/x", "//evil", "", "http://[::1", "file:///x"]
)
async def test_an_unsafe_endpoint_is_rejected(fake: FakeProvider, provider: Provider, name: str, url: str) -> None:
    fake.metadata[name] = url
    await expect_unavailable(provider, name)


@pytest.mark.parametrize("name", ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_an_incomplete_configuration_is_rejected(fake: FakeProvider, provider: Provider, name: str) -> None:
    del fake.metadata[name]
    await expect_unavailable(provider, "configuration")


# Malformed responses.


PATHS = [DISCOVERY, "/keys", "/token", "/userinfo"]
BAD_RESPONSES = {
    "garbage": FakeResponse(b"<html>"),
    "not text": FakeResponse(b"\xff\xfe"),
    "a list": FakeResponse([]),
    "empty": FakeResponse(b""),
    "deep": FakeResponse(b"[" * 100_000),
    "huge": FakeResponse(b" " * (RESPONSE_BYTES_MAX + 1)),
    "packed": FakeResponse(gzip.compress(b"{}"), headers={"content-encoding": "gzip"}),
    "cut short": FakeResponse(b"{}", headers={"content-length": "100"}),
    "not http": FakeResponse(b"", headers={"transfer-encoding": "sideways"}),
    "a redirect": FakeResponse(b"", status=302, headers={"location": "/elsewhere"}),
    "a permanent redirect": FakeResponse(b"", status=308, headers={"location": "/elsewhere"}),
    "no content": FakeResponse(b"", status=204),
    "failed": FakeResponse({"error": "server_error"}, status=500),
    "busy": FakeResponse(b"", status=503),
    "refused": FakeResponse(b"no", status=403),
    "gone": FakeResponse({}, status=404),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("defect", BAD_RESPONSES)
async def test_a_malformed_response_makes_the_provider_unavailable(
    fake: FakeProvider, provider: Provider, path: str, defect: str
) -> None:
    fake.id_token = fake.sign(email=None)
    fake.overrides[path] = BAD_RESPONSES[defect]
    error = await expect_unavailable(provider, "the provider")
    assert error.hint
    assert "/elsewhere" not in fake.paths()


async def test_a_response_of_the_maximum_size_is_read(fake: FakeProvider, provider: Provider) -> None:
    body = json.dumps(fake.metadata).encode().ljust(RESPONSE_BYTES_MAX)
    fake.overrides[DISCOVERY] = FakeResponse(body)
    assert await fetch_person(provider) == ada(fake)


async def test_a_larger_response_is_not_read(fake: FakeProvider, provider: Provider) -> None:
    fake.overrides[DISCOVERY] = FakeResponse(json.dumps(fake.metadata).encode().ljust(RESPONSE_BYTES_MAX + 1))
    await expect_unavailable(provider, str(RESPONSE_BYTES_MAX))


async def test_a_compressed_response_is_rejected(fake: FakeProvider, provider: Provider) -> None:
    compressed = gzip.compress(json.dumps(fake.metadata).encode())
    fake.overrides[DISCOVERY] = FakeResponse(compressed, headers={"content-encoding": "gzip"})
    await expect_unavailable(provider, "compressed")


@pytest.mark.parametrize("path", PATHS)
async def test_a_missing_response_times_out(fake: FakeProvider, clock: ManualClock, path: str) -> None:
    fake.id_token = fake.sign(email=None)
    fake.overrides[path] = None
    async with open_provider(fake.settings(), clock, timeout_seconds=0.2) as provider:
        await expect_unavailable(provider, "the provider")


async def test_an_endless_response_times_out(fake: FakeProvider, clock: ManualClock) -> None:
    fake.overrides["/token"] = FakeResponse(b"", headers={"content-length": "1000000"}, drips=True)
    async with open_provider(fake.settings(), clock, timeout_seconds=0.5) as provider:
        await expect_unavailable(provider, "0.5 seconds")


async def test_a_provider_that_has_stopped_is_unavailable(clock: ManualClock) -> None:
    async with open_fake_provider() as stopped:
        settings = stopped.settings()
    async with open_provider(settings, clock) as provider:
        await expect_unavailable(provider, "configuration")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_proxies_of_the_environment_are_ignored(
    fake: FakeProvider, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with open_provider(fake.settings(), clock) as provider:
        assert await fetch_person(provider) == ada(fake)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("invalid_grant", SignInRefused),
        ("invalid_request", SignInRefused),
        ("invalid_client", ProviderUnavailable),
        ("unauthorized_client", ProviderUnavailable),
        ("something <script>", ProviderUnavailable),
    ],
)
async def test_a_rejected_code_raises_an_error_with_the_reason(
    fake: FakeProvider, provider: Provider, error: str, kind: type[IngotError]
) -> None:
    fake.overrides["/token"] = FakeResponse({"error": error, "error_description": "code the-code"}, status=400)
    with pytest.raises(kind) as caught:
        await fetch_person(provider)
    assert (error in caught.value.detail) is ("<" not in error)


async def test_no_error_shows_a_secret(fake: FakeProvider, clock: ManualClock) -> None:
    secret = "hush-secret"
    tokens = [fake.sign(nonce="x"), fake.sign(OTHER_KEY), fake.sign(OTHER_KEY, header={"kid": "rsa"}), "a.b.c"]
    responses = [FakeResponse({"id_token": token, "access_token": "the-access-token"}) for token in tokens]
    responses += [
        FakeResponse({"error": error, "error_description": secret}, status=401) for error in ("invalid_grant", "x")
    ]
    for response in responses:
        fake.overrides["/token"] = response
        async with open_provider(fake.settings(oidc_client_secret=secret), clock) as provider:
            with pytest.raises(IngotError) as caught:
                await fetch_person(provider)
        shown = f"{caught.value.detail} {caught.value.hint} {caught.value!r}"
        for hidden in (secret, CODE, NONCE, VERIFIER, "the-access-token", *(token[:40] for token in tokens[:3])):
            assert hidden not in shown
