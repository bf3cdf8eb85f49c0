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
from tests.outbound.provider_fixture import DISCOVERY, ada, clock, liar, opened, person, provider, refused, unavailable
from tests.providers.liar import CODE, NONCE, OTHER_KEY, VERIFIER, Answered, Liar, lying_provider

__all__ = ["clock", "liar", "provider"]


# Answers from elsewhere.


async def test_an_answer_of_another_provider_is_refused_before_its_code_is_used(liar: Liar, provider: Provider) -> None:
    for iss in ("https://evil.example.com", liar.issuer + "/", ""):
        await refused(provider, "iss", iss=iss)
    assert "/token" not in liar.paths()
    assert await person(provider, iss=liar.issuer) == ada(liar)


async def test_a_provider_that_names_itself_in_answers_does_so_always(liar: Liar, provider: Provider) -> None:
    liar.metadata["authorization_response_iss_parameter_supported"] = True
    await refused(provider, "iss")
    assert "/token" not in liar.paths()
    assert await person(provider, iss=liar.issuer) == ada(liar)


@pytest.mark.parametrize("code", ["a\nb", "\ud800", "é", "\x00"])
async def test_a_code_that_is_none_is_not_sent(liar: Liar, provider: Provider, code: str) -> None:
    await refused(provider, "code", code=code)
    assert "/token" not in liar.paths()


@pytest.mark.parametrize("name", ["/", "x", ".evil.example.com"])
async def test_a_configuration_of_another_issuer_is_refused(liar: Liar, provider: Provider, name: str) -> None:
    liar.metadata["issuer"] += name
    error = await unavailable(provider, "INGOT_OIDC_ISSUER")
    assert "INGOT_OIDC_ISSUER" in error.hint
    again = await unavailable(provider, "INGOT_OIDC_ISSUER")
    assert again.hint == error.hint


async def test_an_issuer_with_a_slash_at_the_end_is_found(liar: Liar, clock: ManualClock) -> None:
    liar.metadata["issuer"] = liar.issuer + "/"
    liar.claims["iss"] = liar.issuer + "/"
    async with opened(Settings(**{**_given(liar), "oidc_issuer": liar.issuer + "/"}), clock) as provider:
        assert (await person(provider)).issuer == liar.issuer + "/"


def _given(liar: Liar) -> dict[str, Any]:
    settings = liar.settings()
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://login.example.com/x", "ftp://127.0.0.1/x", "//evil", "", "http://[::1", "file:///x"]
)
async def test_a_place_that_cannot_be_trusted_is_refused(liar: Liar, provider: Provider, name: str, url: str) -> None:
    liar.metadata[name] = url
    await unavailable(provider, name)


@pytest.mark.parametrize("name", ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_a_configuration_without_its_parts_is_refused(liar: Liar, provider: Provider, name: str) -> None:
    del liar.metadata[name]
    await unavailable(provider, "configuration")


# Answers that are none.


PLACES = [DISCOVERY, "/keys", "/token", "/userinfo"]
NO_ANSWERS = {
    "garbage": Answered(b"<html>"),
    "not text": Answered(b"\xff\xfe"),
    "a list": Answered([]),
    "empty": Answered(b""),
    "deep": Answered(b"[" * 100_000),
    "huge": Answered(b" " * (RESPONSE_BYTES_MAX + 1)),
    "packed": Answered(gzip.compress(b"{}"), headers={"content-encoding": "gzip"}),
    "cut short": Answered(b"{}", headers={"content-length": "100"}),
    "not http": Answered(b"", headers={"transfer-encoding": "sideways"}),
    "a redirect": Answered(b"", status=302, headers={"location": "/elsewhere"}),
    "a moved place": Answered(b"", status=308, headers={"location": "/elsewhere"}),
    "no content": Answered(b"", status=204),
    "failed": Answered({"error": "server_error"}, status=500),
    "busy": Answered(b"", status=503),
    "refused": Answered(b"no", status=403),
    "gone": Answered({}, status=404),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", NO_ANSWERS)
async def test_an_answer_that_is_none_makes_the_provider_unavailable(
    liar: Liar, provider: Provider, place: str, what: str
) -> None:
    liar.id_token = liar.sign(email=None)
    liar.instead[place] = NO_ANSWERS[what]
    error = await unavailable(provider, "the provider")
    assert error.hint
    assert "/elsewhere" not in liar.paths()


async def test_the_largest_answer_is_read(liar: Liar, provider: Provider) -> None:
    body = json.dumps(liar.metadata).encode().ljust(RESPONSE_BYTES_MAX)
    liar.instead[DISCOVERY] = Answered(body)
    assert await person(provider) == ada(liar)


async def test_a_larger_answer_is_not_read(liar: Liar, provider: Provider) -> None:
    liar.instead[DISCOVERY] = Answered(json.dumps(liar.metadata).encode().ljust(RESPONSE_BYTES_MAX + 1))
    await unavailable(provider, str(RESPONSE_BYTES_MAX))


async def test_a_packed_answer_is_not_unpacked(liar: Liar, provider: Provider) -> None:
    packed = gzip.compress(json.dumps(liar.metadata).encode())
    liar.instead[DISCOVERY] = Answered(packed, headers={"content-encoding": "gzip"})
    await unavailable(provider, "compressed")


@pytest.mark.parametrize("place", PLACES)
async def test_an_answer_that_does_not_come_is_not_waited_for(liar: Liar, clock: ManualClock, place: str) -> None:
    liar.id_token = liar.sign(email=None)
    liar.instead[place] = None
    async with opened(liar.settings(), clock, timeout_seconds=0.2) as provider:
        await unavailable(provider, "the provider")


async def test_an_answer_that_does_not_end_is_not_waited_for(liar: Liar, clock: ManualClock) -> None:
    liar.instead["/token"] = Answered(b"", headers={"content-length": "1000000"}, drips=True)
    async with opened(liar.settings(), clock, timeout_seconds=0.5) as provider:
        await unavailable(provider, "0.5 seconds")


async def test_a_provider_that_is_not_there_is_unavailable(clock: ManualClock) -> None:
    async with lying_provider() as gone:
        settings = gone.settings()
    async with opened(settings, clock) as provider:
        await unavailable(provider, "configuration")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_nothing_goes_through_a_proxy(
    liar: Liar, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened(liar.settings(), clock) as provider:
        assert await person(provider) == ada(liar)


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
    liar: Liar, provider: Provider, error: str, kind: type[IngotError]
) -> None:
    liar.instead["/token"] = Answered({"error": error, "error_description": "code the-code"}, status=400)
    with pytest.raises(kind) as caught:
        await person(provider)
    assert (error in caught.value.detail) is ("<" not in error)


async def test_no_refusal_shows_a_secret(liar: Liar, clock: ManualClock) -> None:
    secret = "hush-secret"
    tokens = [liar.sign(nonce="x"), liar.sign(OTHER_KEY), liar.sign(OTHER_KEY, header={"kid": "rsa"}), "a.b.c"]
    answers = [Answered({"id_token": token, "access_token": "the-access-token"}) for token in tokens]
    answers += [Answered({"error": one, "error_description": secret}, status=401) for one in ("invalid_grant", "x")]
    for answer in answers:
        liar.instead["/token"] = answer
        async with opened(liar.settings(oidc_client_secret=secret), clock) as provider:
            with pytest.raises(IngotError) as caught:
                await person(provider)
        shown = f"{caught.value.detail} {caught.value.hint} {caught.value!r}"
        for hidden in (secret, CODE, NONCE, VERIFIER, "the-access-token", *(token[:40] for token in tokens[:3])):
            assert hidden not in shown
