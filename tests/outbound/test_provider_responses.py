"""Answers of a provider: what is none, lies, does not come, or comes from somebody else."""

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
from tests.outbound.provider_fixture import DISCOVERY, ada, clock, idp, opened, person, provider, refused, unavailable
from tests.providers.fake_provider import (
    CODE,
    NONCE,
    OTHER_KEY,
    VERIFIER,
    FakeProvider,
    FakeResponse,
    open_fake_provider,
)

__all__ = ["clock", "idp", "provider"]


# Answers from elsewhere.


async def test_an_answer_of_another_provider_is_refused_before_its_code_is_used(
    idp: FakeProvider, provider: Provider
) -> None:
    for iss in ("https://evil.example.com", idp.issuer + "/", ""):
        await refused(provider, "iss", iss=iss)
    assert "/token" not in idp.paths()
    assert await person(provider, iss=idp.issuer) == ada(idp)


async def test_a_provider_that_names_itself_in_answers_does_so_always(idp: FakeProvider, provider: Provider) -> None:
    idp.metadata["authorization_response_iss_parameter_supported"] = True
    await refused(provider, "iss")
    assert "/token" not in idp.paths()
    assert await person(provider, iss=idp.issuer) == ada(idp)


@pytest.mark.parametrize("code", ["a\nb", "\ud800", "é", "\x00"])
async def test_a_code_that_is_none_is_not_sent(idp: FakeProvider, provider: Provider, code: str) -> None:
    await refused(provider, "code", code=code)
    assert "/token" not in idp.paths()


@pytest.mark.parametrize("name", ["/", "x", ".evil.example.com"])
async def test_a_configuration_of_another_issuer_is_refused(idp: FakeProvider, provider: Provider, name: str) -> None:
    idp.metadata["issuer"] += name
    error = await unavailable(provider, "INGOT_OIDC_ISSUER")
    assert "INGOT_OIDC_ISSUER" in error.hint
    again = await unavailable(provider, "INGOT_OIDC_ISSUER")
    assert again.hint == error.hint


async def test_an_issuer_with_a_slash_at_the_end_is_found(idp: FakeProvider, clock: ManualClock) -> None:
    idp.metadata["issuer"] = idp.issuer + "/"
    idp.claims["iss"] = idp.issuer + "/"
    async with opened(Settings(**{**_given(idp), "oidc_issuer": idp.issuer + "/"}), clock) as provider:
        assert (await person(provider)).issuer == idp.issuer + "/"


def _given(idp: FakeProvider) -> dict[str, Any]:
    settings = idp.settings()
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://login.example.com/x", "ftp://127.0.0.1/x", "//evil", "", "http://[::1", "file:///x"]
)
async def test_a_place_that_cannot_be_trusted_is_refused(
    idp: FakeProvider, provider: Provider, name: str, url: str
) -> None:
    idp.metadata[name] = url
    await unavailable(provider, name)


@pytest.mark.parametrize("name", ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_a_configuration_without_its_parts_is_refused(idp: FakeProvider, provider: Provider, name: str) -> None:
    del idp.metadata[name]
    await unavailable(provider, "configuration")


# Answers that are none.


PLACES = [DISCOVERY, "/keys", "/token", "/userinfo"]
NO_ANSWERS = {
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
    "a moved place": FakeResponse(b"", status=308, headers={"location": "/elsewhere"}),
    "no content": FakeResponse(b"", status=204),
    "failed": FakeResponse({"error": "server_error"}, status=500),
    "busy": FakeResponse(b"", status=503),
    "refused": FakeResponse(b"no", status=403),
    "gone": FakeResponse({}, status=404),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", NO_ANSWERS)
async def test_an_answer_that_is_none_makes_the_provider_unavailable(
    idp: FakeProvider, provider: Provider, place: str, what: str
) -> None:
    idp.id_token = idp.sign(email=None)
    idp.instead[place] = NO_ANSWERS[what]
    error = await unavailable(provider, "the provider")
    assert error.hint
    assert "/elsewhere" not in idp.paths()


async def test_the_largest_answer_is_read(idp: FakeProvider, provider: Provider) -> None:
    body = json.dumps(idp.metadata).encode().ljust(RESPONSE_BYTES_MAX)
    idp.instead[DISCOVERY] = FakeResponse(body)
    assert await person(provider) == ada(idp)


async def test_a_larger_answer_is_not_read(idp: FakeProvider, provider: Provider) -> None:
    idp.instead[DISCOVERY] = FakeResponse(json.dumps(idp.metadata).encode().ljust(RESPONSE_BYTES_MAX + 1))
    await unavailable(provider, str(RESPONSE_BYTES_MAX))


async def test_a_packed_answer_is_not_unpacked(idp: FakeProvider, provider: Provider) -> None:
    packed = gzip.compress(json.dumps(idp.metadata).encode())
    idp.instead[DISCOVERY] = FakeResponse(packed, headers={"content-encoding": "gzip"})
    await unavailable(provider, "compressed")


@pytest.mark.parametrize("place", PLACES)
async def test_an_answer_that_does_not_come_is_not_waited_for(
    idp: FakeProvider, clock: ManualClock, place: str
) -> None:
    idp.id_token = idp.sign(email=None)
    idp.instead[place] = None
    async with opened(idp.settings(), clock, timeout_seconds=0.2) as provider:
        await unavailable(provider, "the provider")


async def test_an_answer_that_does_not_end_is_not_waited_for(idp: FakeProvider, clock: ManualClock) -> None:
    idp.instead["/token"] = FakeResponse(b"", headers={"content-length": "1000000"}, drips=True)
    async with opened(idp.settings(), clock, timeout_seconds=0.5) as provider:
        await unavailable(provider, "0.5 seconds")


async def test_a_provider_that_is_not_there_is_unavailable(clock: ManualClock) -> None:
    async with open_fake_provider() as gone:
        settings = gone.settings()
    async with opened(settings, clock) as provider:
        await unavailable(provider, "configuration")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_nothing_goes_through_a_proxy(
    idp: FakeProvider, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened(idp.settings(), clock) as provider:
        assert await person(provider) == ada(idp)


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
async def test_a_code_that_is_refused_says_why(
    idp: FakeProvider, provider: Provider, error: str, kind: type[IngotError]
) -> None:
    idp.instead["/token"] = FakeResponse({"error": error, "error_description": "code the-code"}, status=400)
    with pytest.raises(kind) as caught:
        await person(provider)
    assert (error in caught.value.detail) is ("<" not in error)


async def test_no_refusal_shows_a_secret(idp: FakeProvider, clock: ManualClock) -> None:
    secret = "hush-secret"
    tokens = [idp.sign(nonce="x"), idp.sign(OTHER_KEY), idp.sign(OTHER_KEY, header={"kid": "rsa"}), "a.b.c"]
    answers = [FakeResponse({"id_token": token, "access_token": "the-access-token"}) for token in tokens]
    answers += [FakeResponse({"error": one, "error_description": secret}, status=401) for one in ("invalid_grant", "x")]
    for answer in answers:
        idp.instead["/token"] = answer
        async with opened(idp.settings(oidc_client_secret=secret), clock) as provider:
            with pytest.raises(IngotError) as caught:
                await person(provider)
        shown = f"{caught.value.detail} {caught.value.hint} {caught.value!r}"
        for hidden in (secret, CODE, NONCE, VERIFIER, "the-access-token", *(token[:40] for token in tokens[:3])):
            assert hidden not in shown
