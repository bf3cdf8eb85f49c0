"""Tokens of a provider: what is signed and says the right thing is taken, and nothing else."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from ingot.kernel.clock import ManualClock
from ingot.outbound.provider import Provider
from tests.outbound.provider_fixture import DISCOVERY, ada, clock, idp, opened, person, provider, refused
from tests.providers.fake_provider import EC_KEY, OTHER_KEY, RSA_KEY, FakeProvider, FakeResponse, sign_unchecked

__all__ = ["clock", "idp", "provider"]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "another"}, "audience"),
        ({"aud": ["ingot", "another"]}, "azp"),
        ({"azp": "another"}, "azp"),
        ({"iss": "https://another.example.com"}, "issuer"),
        ({"exp": 1_000_000_000}, "expired"),
        ({"iat": 5_000_000_000}, "iat"),
        ({"nbf": 5_000_000_000}, "nbf"),
        ({"sub": None}, "sub"),
        ({"email_verified": False}, "not verified"),
        ({"groups": "staff"}, "groups"),
        ({"groups": ["g"] * 1001}, "groups"),
    ],
)
async def test_a_signed_token_that_says_the_wrong_thing_is_refused(
    idp: FakeProvider, provider: Provider, claims: dict[str, Any], said: str
) -> None:
    idp.id_token = idp.sign(**claims)
    await refused(provider, said)


async def test_time_goes_on_and_the_token_expires(idp: FakeProvider, provider: Provider, clock: ManualClock) -> None:
    clock.advance(seconds=300 + 59)
    assert await person(provider) == ada(idp)
    clock.advance(seconds=2)
    await refused(provider, "expired")


def part(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_that_nobody_signed_is_refused(idp: FakeProvider, provider: Provider, alg: str) -> None:
    for kid in ({}, {"kid": "rsa"}):
        idp.id_token = f"{part({'alg': alg, **kid})}.{part(idp.claims)}."
        await refused(provider, "alg")


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
@pytest.mark.parametrize("alg", ["HS256", "HS512"])
async def test_a_public_key_is_no_secret_to_sign_with(
    idp: FakeProvider, provider: Provider, form: str, alg: str
) -> None:
    known = {
        "pem": RSA_KEY.as_pem(private=False),
        "der": RSA_KEY.as_der(private=False),
        "jwk": json.dumps(RSA_KEY.as_dict(private=False)).encode(),
    }[form]
    said = f"{part({'alg': alg, 'kid': 'rsa'})}.{part(idp.claims)}"
    proof = hmac.digest(known, said.encode(), f"sha{alg[2:]}")
    idp.id_token = f"{said}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"
    await refused(provider, "alg")


async def test_the_secret_of_the_client_signs_nothing_either(idp: FakeProvider, clock: ManualClock) -> None:
    secret = "hush" * 16
    raw = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    key = OctKey.import_key({"kty": "oct", "k": raw, "kid": "mac"})
    idp.keys.append(key)
    idp.instead["/keys"] = FakeResponse({"keys": [key.as_dict(private=True), RSA_KEY.as_dict(private=False)]})
    idp.id_token = idp.sign(key, alg="HS256")
    async with opened(idp.settings(oidc_client_secret=secret), clock) as provider:
        await refused(provider, "alg")


@pytest.mark.parametrize(
    "header",
    [
        {"jku": "http://127.0.0.1:1/keys"},
        {"jwk": OTHER_KEY.as_dict(private=False)},
        {"x5u": "http://127.0.0.1:1/chain"},
        {"x5c": ["MIIB"]},
        {"crit": ["exp"], "exp": 1},
        {"crit": ["unknown"], "unknown": True},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": True},
    ],
)
@pytest.mark.parametrize("key", [RSA_KEY, OTHER_KEY])
async def test_a_header_that_brings_a_key_or_asks_for_more_is_refused(
    idp: FakeProvider, provider: Provider, header: dict[str, Any], key: RSAKey
) -> None:
    small = {} if "jwk" not in header else {"jwk": {"kty": "RSA", "n": header["jwk"]["n"][:40], "e": "AQAB"}}
    idp.id_token = idp.sign(key, header={**header, **small})
    await refused(provider, next(iter(header)))
    assert {*idp.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize(
    "kid",
    ["../../../../dev/null", "/dev/null", "' OR 1=1 --", "http://127.0.0.1:1/keys", "nobody", "", "rsa\x00", "RSA"],
)
async def test_a_kid_is_looked_up_and_nothing_else(idp: FakeProvider, provider: Provider, kid: str) -> None:
    idp.id_token = idp.sign(RSA_KEY, header={"kid": kid})
    await refused(provider, "does not publish")
    assert {*idp.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize("kid", [5, ["rsa"], {"rsa": 1}, True])
async def test_a_kid_that_is_no_text_is_none(idp: FakeProvider, provider: Provider, kid: object) -> None:
    idp.id_token = idp.sign(RSA_KEY, header={"kid": kid})
    await refused(provider, "key")


async def test_a_token_of_another_key_under_a_known_kid_is_refused(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(OTHER_KEY, header={"kid": "rsa"})
    await refused(provider, "signature")


async def test_a_token_that_was_changed_is_refused(idp: FakeProvider, provider: Provider) -> None:
    head, _, signature = idp.sign().split(".")
    other = idp.sign(sub="eve").split(".")[1]
    idp.id_token = f"{head}.{other}.{signature}"
    await refused(provider, "signature")


@pytest.mark.parametrize("listed", [{"alg": "PS256"}, {"use": "enc"}, {"kid": "another"}])
async def test_a_key_signs_only_as_it_is_listed(idp: FakeProvider, provider: Provider, listed: dict[str, Any]) -> None:
    idp.instead["/keys"] = FakeResponse({"keys": [{**RSA_KEY.as_dict(private=False), **listed}]})
    await refused(provider, "does not publish")


async def test_a_key_of_another_kind_under_a_known_kid_is_refused(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(EC_KEY, alg="ES256", header={"kid": "rsa"})
    await refused(provider, "does not publish")


@pytest.mark.filterwarnings("ignore:Key size should be")
async def test_a_key_that_is_too_short_signs_nothing(idp: FakeProvider, provider: Provider) -> None:
    short = RSAKey.generate_key(1024, {"kid": "short"}, private=True)
    idp.keys.append(short)
    idp.id_token = idp.sign(short)
    await refused(provider, "does not publish")


async def test_a_token_without_a_kid_is_taken_only_when_one_key_fits(idp: FakeProvider, provider: Provider) -> None:
    idp.id_token = idp.sign(RSA_KEY, header={"kid": None})
    assert await person(provider) == ada(idp)


async def test_a_token_without_a_kid_is_refused_when_many_keys_fit(idp: FakeProvider, provider: Provider) -> None:
    idp.keys.append(OTHER_KEY)
    idp.id_token = idp.sign(RSA_KEY, header={"kid": None})
    await refused(provider, "kid")


async def test_keys_that_cannot_be_used_are_passed_over(idp: FakeProvider, provider: Provider) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 5, "e": []},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X", "x": ""},
        {"kty": 5},
    ]
    idp.instead["/keys"] = FakeResponse({"keys": [*odd, RSA_KEY.as_dict(private=False)]})
    assert await person(provider) == ada(idp)


@pytest.mark.parametrize(
    "token",
    ["", "a", "a.b", "a.b.c", "...", "e30.e30.e30", "e30.e30.e30.e30.e30", "W10.e30.AA", "é.b.c", "x" * 300_000],
)
async def test_a_token_that_is_none_is_refused(idp: FakeProvider, provider: Provider, token: str) -> None:
    idp.instead["/token"] = FakeResponse({"id_token": token})
    await refused(provider, "token")


@pytest.mark.parametrize("payload", [b"", b"[]", b"5", b"{", b"\xff", b'{"exp": NaN}', b"[" * 5000])
async def test_a_signed_text_that_is_no_claims_is_refused(
    idp: FakeProvider, provider: Provider, payload: bytes
) -> None:
    idp.id_token = sign_unchecked({"alg": "RS256", "kid": "rsa"}, payload, RSA_KEY)
    await refused(provider, "token")
