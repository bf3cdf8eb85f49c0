"""ID tokens: only a token with a valid signature and valid claims is accepted."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from ingot.kernel.clock import ManualClock
from ingot.outbound.provider import Provider
from tests.outbound.provider_fixture import (
    DISCOVERY,
    ada,
    clock,
    expect_refusal,
    fake,
    fetch_person,
    open_provider,
    provider,
)
from tests.providers.fake_provider import EC_KEY, OTHER_KEY, RSA_KEY, FakeProvider, FakeResponse, sign_unchecked

__all__ = ["clock", "fake", "provider"]


@pytest.mark.parametrize(
    ("claims", "message"),
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
async def test_a_signed_token_with_wrong_claims_is_rejected(
    fake: FakeProvider, provider: Provider, claims: dict[str, Any], message: str
) -> None:
    fake.id_token = fake.sign(**claims)
    await expect_refusal(provider, message)


async def test_a_token_expires(fake: FakeProvider, provider: Provider, clock: ManualClock) -> None:
    clock.advance(seconds=300 + 59)
    assert await fetch_person(provider) == ada(fake)
    clock.advance(seconds=2)
    await expect_refusal(provider, "expired")


def part(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", ""])
async def test_an_unsigned_token_is_rejected(fake: FakeProvider, provider: Provider, alg: str) -> None:
    for kid in ({}, {"kid": "rsa"}):
        fake.id_token = f"{part({'alg': alg, **kid})}.{part(fake.claims)}."
        await expect_refusal(provider, "alg")


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
@pytest.mark.parametrize("alg", ["HS256", "HS512"])
async def test_a_token_signed_with_the_public_key_as_secret_is_rejected(
    fake: FakeProvider, provider: Provider, form: str, alg: str
) -> None:
    public_key = {
        "pem": RSA_KEY.as_pem(private=False),
        "der": RSA_KEY.as_der(private=False),
        "jwk": json.dumps(RSA_KEY.as_dict(private=False)).encode(),
    }[form]
    signed = f"{part({'alg': alg, 'kid': 'rsa'})}.{part(fake.claims)}"
    proof = hmac.digest(public_key, signed.encode(), f"sha{alg[2:]}")
    fake.id_token = f"{signed}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"
    await expect_refusal(provider, "alg")


async def test_a_token_signed_with_the_client_secret_is_rejected(fake: FakeProvider, clock: ManualClock) -> None:
    secret = "hush" * 16
    raw = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    key = OctKey.import_key({"kty": "oct", "k": raw, "kid": "mac"})
    fake.keys.append(key)
    fake.overrides["/keys"] = FakeResponse({"keys": [key.as_dict(private=True), RSA_KEY.as_dict(private=False)]})
    fake.id_token = fake.sign(key, alg="HS256")
    async with open_provider(fake.settings(oidc_client_secret=secret), clock) as provider:
        await expect_refusal(provider, "alg")


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
async def test_a_token_header_with_a_key_or_critical_extensions_is_rejected(
    fake: FakeProvider, provider: Provider, header: dict[str, Any], key: RSAKey
) -> None:
    small = {} if "jwk" not in header else {"jwk": {"kty": "RSA", "n": header["jwk"]["n"][:40], "e": "AQAB"}}
    fake.id_token = fake.sign(key, header={**header, **small})
    await expect_refusal(provider, next(iter(header)))
    assert {*fake.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize(
    "kid",
    ["../../../../dev/null", "/dev/null", "' OR 1=1 --", "http://127.0.0.1:1/keys", "nobody", "", "rsa\x00", "RSA"],
)
async def test_an_unknown_kid_is_rejected_without_other_requests(
    fake: FakeProvider, provider: Provider, kid: str
) -> None:
    fake.id_token = fake.sign(RSA_KEY, header={"kid": kid})
    await expect_refusal(provider, "does not publish")
    assert {*fake.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize("kid", [5, ["rsa"], {"rsa": 1}, True])
async def test_a_kid_that_is_not_text_is_rejected(fake: FakeProvider, provider: Provider, kid: object) -> None:
    fake.id_token = fake.sign(RSA_KEY, header={"kid": kid})
    await expect_refusal(provider, "key")


async def test_a_token_signed_with_another_key_under_a_known_kid_is_rejected(
    fake: FakeProvider, provider: Provider
) -> None:
    fake.id_token = fake.sign(OTHER_KEY, header={"kid": "rsa"})
    await expect_refusal(provider, "signature")


async def test_an_altered_token_is_rejected(fake: FakeProvider, provider: Provider) -> None:
    head, _, signature = fake.sign().split(".")
    other = fake.sign(sub="eve").split(".")[1]
    fake.id_token = f"{head}.{other}.{signature}"
    await expect_refusal(provider, "signature")


@pytest.mark.parametrize("listed", [{"alg": "PS256"}, {"use": "enc"}, {"kid": "another"}])
async def test_a_key_is_used_only_as_it_is_published(
    fake: FakeProvider, provider: Provider, listed: dict[str, Any]
) -> None:
    fake.overrides["/keys"] = FakeResponse({"keys": [{**RSA_KEY.as_dict(private=False), **listed}]})
    await expect_refusal(provider, "does not publish")


async def test_a_token_of_another_key_type_under_a_known_kid_is_rejected(
    fake: FakeProvider, provider: Provider
) -> None:
    fake.id_token = fake.sign(EC_KEY, alg="ES256", header={"kid": "rsa"})
    await expect_refusal(provider, "does not publish")


@pytest.mark.filterwarnings("ignore:Key size should be")
async def test_a_token_signed_with_a_short_key_is_rejected(fake: FakeProvider, provider: Provider) -> None:
    short = RSAKey.generate_key(1024, {"kid": "short"}, private=True)
    fake.keys.append(short)
    fake.id_token = fake.sign(short)
    await expect_refusal(provider, "does not publish")


async def test_a_token_without_a_kid_is_accepted_if_one_key_matches(fake: FakeProvider, provider: Provider) -> None:
    fake.id_token = fake.sign(RSA_KEY, header={"kid": None})
    assert await fetch_person(provider) == ada(fake)


async def test_a_token_without_a_kid_is_rejected_if_several_keys_match(fake: FakeProvider, provider: Provider) -> None:
    fake.keys.append(OTHER_KEY)
    fake.id_token = fake.sign(RSA_KEY, header={"kid": None})
    await expect_refusal(provider, "kid")


async def test_unusable_keys_are_ignored(fake: FakeProvider, provider: Provider) -> None:
    unusable: list[dict[str, Any]] = [
        {},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 5, "e": []},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X", "x": ""},
        {"kty": 5},
    ]
    fake.overrides["/keys"] = FakeResponse({"keys": [*unusable, RSA_KEY.as_dict(private=False)]})
    assert await fetch_person(provider) == ada(fake)


@pytest.mark.parametrize(
    "token",
    ["", "a", "a.b", "a.b.c", "...", "e30.e30.e30", "e30.e30.e30.e30.e30", "W10.e30.AA", "é.b.c", "x" * 300_000],
)
async def test_a_malformed_token_is_rejected(fake: FakeProvider, provider: Provider, token: str) -> None:
    fake.overrides["/token"] = FakeResponse({"id_token": token})
    await expect_refusal(provider, "token")


@pytest.mark.parametrize("payload", [b"", b"[]", b"5", b"{", b"\xff", b'{"exp": NaN}', b"[" * 5000])
async def test_a_signed_payload_that_is_not_claims_is_rejected(
    fake: FakeProvider, provider: Provider, payload: bytes
) -> None:
    fake.id_token = sign_unchecked({"alg": "RS256", "kid": "rsa"}, payload, RSA_KEY)
    await expect_refusal(provider, "token")
