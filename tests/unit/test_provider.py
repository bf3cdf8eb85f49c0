"""The provider: what is asked of it, and what is refused of what it answers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hmac
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from joserfc.jwk import OctKey, RSAKey

from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import ManualClock, SystemClock, to_datetime
from ingot.kernel.errors import IngotError
from ingot.outbound.asking import ANSWER_BYTES_MAX, ProviderUnavailable
from ingot.outbound.provider import FAILED_SECONDS, KEYS_AGAIN_SECONDS, KNOWN_SECONDS, Provider
from ingot.settings import Settings
from tests.providers.liar import (
    CALLBACK,
    CODE,
    EC_KEY,
    NONCE,
    OKP_KEY,
    OTHER_KEY,
    RSA_KEY,
    VERIFIER,
    Answered,
    Liar,
    lying_provider,
    make_certificate,
    sign_anything,
)

DISCOVERY = "/.well-known/openid-configuration"
TRUST = ssl.create_default_context()  # Takes longer to make than most tests.


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    async with lying_provider() as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_datetime(SystemClock().micros()))


@asynccontextmanager
async def opened(settings: Settings, clock: ManualClock, **options: Any) -> AsyncIterator[Provider]:
    provider = Provider(settings, clock, **{"trust": TRUST, **options})
    try:
        yield provider
    finally:
        await provider.close()


@pytest.fixture
async def provider(liar: Liar, clock: ManualClock) -> AsyncIterator[Provider]:
    async with opened(liar.settings(), clock) as one:
        yield one


async def person(provider: Provider, **changed: Any) -> Person:
    return await provider.person(**{"code": CODE, "nonce": NONCE, "verifier": VERIFIER, **changed})


async def refused(provider: Provider, said: str, **changed: Any) -> SignInRefused:
    with pytest.raises(SignInRefused, match=said) as caught:
        await person(provider, **changed)
    return caught.value


async def unavailable(provider: Provider, said: str) -> ProviderUnavailable:
    with pytest.raises(ProviderUnavailable, match=said) as caught:
        await person(provider)
    return caught.value


def ada(liar: Liar) -> Person:
    return Person(issuer=liar.issuer, subject="ada", email="ada@example.com", email_verified=True, groups=("staff",))


# The way there.


async def begun(provider: Provider, **options: Any) -> tuple[str, dict[str, list[str]]]:
    place, _, query = (await provider.begin(state="s&s", nonce="n", verifier=VERIFIER, **options)).partition("?")
    return place, parse_qs(query, strict_parsing=True)


async def test_people_are_sent_to_the_provider_with_a_challenge(liar: Liar, provider: Provider) -> None:
    place, asked = await begun(provider)
    assert place == f"{liar.issuer}/authorize"
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


async def test_groups_are_asked_for_where_the_provider_has_them(liar: Liar, provider: Provider) -> None:
    liar.metadata["scopes_supported"] = ["openid", "groups"]
    _, asked = await begun(provider)
    assert asked["scope"] == ["openid profile email groups"]


async def test_scopes_of_the_settings_are_asked_for_as_they_are(liar: Liar, clock: ManualClock) -> None:
    liar.metadata["scopes_supported"] = ["openid", "groups"]
    async with opened(liar.settings(oidc_scopes=("openid", "roles")), clock) as provider:
        _, asked = await begun(provider)
    assert asked["scope"] == ["openid roles"]


async def test_an_address_with_a_query_of_its_own_keeps_it(liar: Liar, provider: Provider) -> None:
    liar.metadata["authorization_endpoint"] += "?realm=a"
    url = await provider.begin(state="s", nonce="n", verifier=VERIFIER)
    assert url.startswith(f"{liar.issuer}/authorize?realm=a&response_type=code&")


# The way back.


@pytest.mark.parametrize(
    ("key", "alg"),
    [(RSA_KEY, "RS256"), (RSA_KEY, "PS384"), (EC_KEY, "ES256"), (OKP_KEY, "EdDSA"), (OKP_KEY, "Ed25519")],
)
async def test_who_comes_back_is_who_the_token_says(liar: Liar, provider: Provider, key: Any, alg: str) -> None:
    liar.id_token = liar.sign(key, alg=alg)
    assert await person(provider) == ada(liar)
    assert "/userinfo" not in liar.paths()


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
    liar: Liar, clock: ManualClock, secret: str | None, methods: list[str] | None, proof: str
) -> None:
    liar.metadata["token_endpoint_auth_methods_supported"] = methods
    if methods is None:
        del liar.metadata["token_endpoint_auth_methods_supported"]
    async with opened(liar.settings(oidc_client_secret=secret), clock) as provider:
        await person(provider)
    (headers, form) = next((headers, form) for path, headers, form in liar.asked if path == "/token")
    sent = {"grant_type": "authorization_code", "code": CODE, "redirect_uri": CALLBACK, "code_verifier": VERIFIER}
    if proof == "basic":
        told = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
        assert (told, form) == ("ingot:h%3Au%25s+h", sent)
    else:
        known = {"client_id": "ingot"} if secret is None else {"client_id": "ingot", "client_secret": secret}
        assert "authorization" not in headers
        assert form == sent | known


async def test_what_the_token_leaves_out_is_asked_for(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(email=None, groups=None)
    liar.userinfo = {"sub": "ada", "email": "ada@example.com", "email_verified": True, "groups": ["staff"]}
    assert await person(provider) == ada(liar)
    assert liar.asked[-1][0] == "/userinfo"
    assert liar.asked[-1][1]["authorization"] == "Bearer the-access-token"


async def test_what_is_told_of_somebody_else_is_refused(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(email=None)
    liar.userinfo = {"sub": "eve", "email": "eve@example.com", "email_verified": True}
    await refused(provider, "another person")


async def test_a_provider_without_userinfo_is_not_asked(liar: Liar, provider: Provider) -> None:
    del liar.metadata["userinfo_endpoint"]
    liar.id_token = liar.sign(email=None)
    assert (await person(provider)).email is None


async def test_the_rules_of_the_settings_hold(liar: Liar, clock: ManualClock) -> None:
    async with opened(liar.settings(oidc_allowed_groups=("ops",)), clock) as provider:
        await refused(provider, "none of the groups")
    async with opened(liar.settings(oidc_allowed_groups=("x",), oidc_admin_groups=("staff",)), clock) as provider:
        assert await person(provider) == ada(liar)
    async with opened(liar.settings(oidc_groups_claim="roles", oidc_admin_groups=("a",)), clock) as provider:
        await refused(provider, "in which groups")


# Tokens that are not for us.


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
        ({"iat": 5_000_000_000}, "in the future"),
        ({"nbf": 5_000_000_000}, "not hold yet"),
        ({"sub": None}, "sub"),
        ({"email_verified": False}, "not verified"),
        ({"groups": "staff"}, "groups"),
        ({"groups": ["g"] * 1001}, "groups"),
    ],
)
async def test_a_signed_token_that_says_the_wrong_thing_is_refused(
    liar: Liar, provider: Provider, claims: dict[str, Any], said: str
) -> None:
    liar.id_token = liar.sign(**claims)
    await refused(provider, said)


async def test_time_goes_on_and_the_token_expires(liar: Liar, provider: Provider, clock: ManualClock) -> None:
    clock.advance(seconds=300 + 59)
    assert await person(provider) == ada(liar)
    clock.advance(seconds=2)
    await refused(provider, "expired")


def part(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_that_nobody_signed_is_refused(liar: Liar, provider: Provider, alg: str) -> None:
    for kid in ({}, {"kid": "rsa"}):
        liar.id_token = f"{part({'alg': alg, **kid})}.{part(liar.claims)}."
        await refused(provider, "alg")


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
@pytest.mark.parametrize("alg", ["HS256", "HS512"])
async def test_a_public_key_is_no_secret_to_sign_with(liar: Liar, provider: Provider, form: str, alg: str) -> None:
    known = {
        "pem": RSA_KEY.as_pem(private=False),
        "der": RSA_KEY.as_der(private=False),
        "jwk": json.dumps(RSA_KEY.as_dict(private=False)).encode(),
    }[form]
    said = f"{part({'alg': alg, 'kid': 'rsa'})}.{part(liar.claims)}"
    proof = hmac.digest(known, said.encode(), f"sha{alg[2:]}")
    liar.id_token = f"{said}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"
    await refused(provider, "alg")


async def test_the_secret_of_the_client_signs_nothing_either(liar: Liar, clock: ManualClock) -> None:
    secret = "hush" * 16
    raw = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    key = OctKey.import_key({"kty": "oct", "k": raw, "kid": "mac"})
    liar.keys.append(key)
    liar.instead["/keys"] = Answered({"keys": [key.as_dict(private=True), RSA_KEY.as_dict(private=False)]})
    liar.id_token = liar.sign(key, alg="HS256")
    async with opened(liar.settings(oidc_client_secret=secret), clock) as provider:
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
    liar: Liar, provider: Provider, header: dict[str, Any], key: RSAKey
) -> None:
    small = {} if "jwk" not in header else {"jwk": {"kty": "RSA", "n": header["jwk"]["n"][:40], "e": "AQAB"}}
    liar.id_token = liar.sign(key, header={**header, **small})
    await refused(provider, next(iter(header)))
    assert {*liar.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize(
    "kid",
    ["../../../../dev/null", "/dev/null", "' OR 1=1 --", "http://127.0.0.1:1/keys", "nobody", "", "rsa\x00", "RSA"],
)
async def test_a_kid_is_looked_up_and_nothing_else(liar: Liar, provider: Provider, kid: str) -> None:
    liar.id_token = liar.sign(RSA_KEY, header={"kid": kid})
    await refused(provider, "a key that the provider does not list")
    assert {*liar.paths()} == {DISCOVERY, "/token", "/keys"}


@pytest.mark.parametrize("kid", [5, ["rsa"], {"rsa": 1}, True])
async def test_a_kid_that_is_no_text_is_none(liar: Liar, provider: Provider, kid: object) -> None:
    liar.id_token = liar.sign(RSA_KEY, header={"kid": kid})
    await refused(provider, "key")


async def test_a_token_of_another_key_under_a_known_kid_is_refused(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(OTHER_KEY, header={"kid": "rsa"})
    await refused(provider, "signature")


async def test_a_token_that_was_changed_is_refused(liar: Liar, provider: Provider) -> None:
    head, _, signature = liar.sign().split(".")
    other = liar.sign(sub="eve").split(".")[1]
    liar.id_token = f"{head}.{other}.{signature}"
    await refused(provider, "signature")


@pytest.mark.parametrize("listed", [{"alg": "PS256"}, {"use": "enc"}, {"kid": "another"}])
async def test_a_key_signs_only_as_it_is_listed(liar: Liar, provider: Provider, listed: dict[str, Any]) -> None:
    liar.instead["/keys"] = Answered({"keys": [{**RSA_KEY.as_dict(private=False), **listed}]})
    await refused(provider, "does not list")


async def test_a_key_of_another_kind_under_a_known_kid_is_refused(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(EC_KEY, alg="ES256", header={"kid": "rsa"})
    await refused(provider, "does not list")


@pytest.mark.filterwarnings("ignore:Key size should be")
async def test_a_key_that_is_too_short_signs_nothing(liar: Liar, provider: Provider) -> None:
    short = RSAKey.generate_key(1024, {"kid": "short"}, private=True)
    liar.keys.append(short)
    liar.id_token = liar.sign(short)
    await refused(provider, "does not list")


async def test_a_token_without_a_kid_is_taken_only_when_one_key_fits(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(RSA_KEY, header={"kid": None})
    assert await person(provider) == ada(liar)


async def test_a_token_without_a_kid_is_refused_when_many_keys_fit(liar: Liar, provider: Provider) -> None:
    liar.keys.append(OTHER_KEY)
    liar.id_token = liar.sign(RSA_KEY, header={"kid": None})
    await refused(provider, "which key")


async def test_keys_that_cannot_be_used_are_passed_over(liar: Liar, provider: Provider) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 5, "e": []},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X", "x": ""},
        {"kty": 5},
    ]
    liar.instead["/keys"] = Answered({"keys": [*odd, RSA_KEY.as_dict(private=False)]})
    assert await person(provider) == ada(liar)


@pytest.mark.parametrize(
    "token",
    ["", "a", "a.b", "a.b.c", "...", "e30.e30.e30", "e30.e30.e30.e30.e30", "W10.e30.AA", "é.b.c", "x" * 300_000],
)
async def test_a_token_that_is_none_is_refused(liar: Liar, provider: Provider, token: str) -> None:
    liar.instead["/token"] = Answered({"id_token": token})
    await refused(provider, "token")


@pytest.mark.parametrize("payload", [b"", b"[]", b"5", b"{", b"\xff", b'{"exp": NaN}', b"[" * 5000])
async def test_a_signed_text_that_is_no_claims_is_refused(liar: Liar, provider: Provider, payload: bytes) -> None:
    liar.id_token = sign_anything({"alg": "RS256", "kid": "rsa"}, payload, RSA_KEY)
    await refused(provider, "token")


# Answers from elsewhere.


async def test_an_answer_of_another_provider_is_refused_before_its_code_is_used(liar: Liar, provider: Provider) -> None:
    for iss in ("https://evil.example.com", liar.issuer + "/", ""):
        await refused(provider, "another provider", iss=iss)
    assert "/token" not in liar.paths()
    assert await person(provider, iss=liar.issuer) == ada(liar)


async def test_a_provider_that_names_itself_in_answers_does_so_always(liar: Liar, provider: Provider) -> None:
    liar.metadata["authorization_response_iss_parameter_supported"] = True
    await refused(provider, "another provider")
    assert "/token" not in liar.paths()
    assert await person(provider, iss=liar.issuer) == ada(liar)


@pytest.mark.parametrize("code", ["a\nb", "\ud800", "é", "\x00"])
async def test_a_code_that_is_none_is_not_sent(liar: Liar, provider: Provider, code: str) -> None:
    await refused(provider, "code", code=code)
    assert "/token" not in liar.paths()


@pytest.mark.parametrize("name", ["/", "x", ".evil.example.com"])
async def test_a_configuration_of_another_issuer_is_refused(liar: Liar, provider: Provider, name: str) -> None:
    liar.metadata["issuer"] += name
    error = await unavailable(provider, "names itself otherwise")
    assert "INGOT_OIDC_ISSUER" in error.hint
    again = await unavailable(provider, "names itself otherwise")
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
    await unavailable(provider, f"the {name} of the provider is not on https")


@pytest.mark.parametrize("name", ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_a_configuration_without_its_parts_is_refused(liar: Liar, provider: Provider, name: str) -> None:
    del liar.metadata[name]
    await unavailable(provider, "configuration of the provider cannot be read")


# Answers that are none.

PLACES = [DISCOVERY, "/keys", "/token", "/userinfo"]
NO_ANSWERS = {
    "garbage": Answered(b"<html>"),
    "not text": Answered(b"\xff\xfe"),
    "a list": Answered([]),
    "empty": Answered(b""),
    "deep": Answered(b"[" * 100_000),
    "huge": Answered(b" " * (ANSWER_BYTES_MAX + 1)),
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
    error = await unavailable(provider, "of the provider")
    assert error.hint
    assert "/elsewhere" not in liar.paths()


async def test_the_largest_answer_is_read(liar: Liar, provider: Provider) -> None:
    body = json.dumps(liar.metadata).encode().ljust(ANSWER_BYTES_MAX)
    liar.instead[DISCOVERY] = Answered(body)
    assert await person(provider) == ada(liar)


async def test_a_larger_answer_is_not_read(liar: Liar, provider: Provider) -> None:
    liar.instead[DISCOVERY] = Answered(json.dumps(liar.metadata).encode().ljust(ANSWER_BYTES_MAX + 1))
    await unavailable(provider, "too large")


async def test_a_packed_answer_is_not_unpacked(liar: Liar, provider: Provider) -> None:
    packed = gzip.compress(json.dumps(liar.metadata).encode())
    liar.instead[DISCOVERY] = Answered(packed, headers={"content-encoding": "gzip"})
    await unavailable(provider, "packed")


@pytest.mark.parametrize("place", PLACES)
async def test_an_answer_that_does_not_come_is_not_waited_for(liar: Liar, clock: ManualClock, place: str) -> None:
    liar.id_token = liar.sign(email=None)
    liar.instead[place] = None
    async with opened(liar.settings(), clock, answer_seconds=0.2) as provider:
        await unavailable(provider, "of the provider")


async def test_an_answer_that_does_not_end_is_not_waited_for(liar: Liar, clock: ManualClock) -> None:
    liar.instead["/token"] = Answered(b"", headers={"content-length": "1000000"}, drips=True)
    async with opened(liar.settings(), clock, answer_seconds=0.5) as provider:
        await unavailable(provider, "of the provider took too long")


async def test_a_provider_that_is_not_there_is_unavailable(clock: ManualClock) -> None:
    async with lying_provider() as gone:
        settings = gone.settings()
    async with opened(settings, clock) as provider:
        await unavailable(provider, "configuration of the provider was not reached")


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


# What is remembered.


async def test_configuration_and_keys_are_asked_for_once_an_hour(
    liar: Liar, provider: Provider, clock: ManualClock
) -> None:
    liar.claims["exp"] += 10_000
    for _ in range(3):
        await person(provider)
    assert liar.paths() == [DISCOVERY, "/token", "/keys", "/token", "/token"]
    clock.advance(seconds=KNOWN_SECONDS)
    await person(provider)
    assert liar.paths()[5:] == [DISCOVERY, "/token", "/keys"]


async def test_many_who_come_together_ask_once(liar: Liar, provider: Provider) -> None:
    await asyncio.gather(*(person(provider) for _ in range(10)))
    assert (liar.paths().count(DISCOVERY), liar.paths().count("/keys")) == (1, 1)


async def test_a_new_key_is_found_and_the_old_one_forgotten(liar: Liar, provider: Provider, clock: ManualClock) -> None:
    await person(provider)
    liar.keys = [OTHER_KEY]
    clock.advance(seconds=KEYS_AGAIN_SECONDS)
    liar.id_token = liar.sign(OTHER_KEY)
    assert await person(provider) == ada(liar)
    liar.id_token = liar.sign(RSA_KEY)
    await refused(provider, "does not list")


async def test_unknown_keys_are_looked_for_once_a_minute(liar: Liar, provider: Provider, clock: ManualClock) -> None:
    liar.id_token = liar.sign(OTHER_KEY)
    for _ in range(3):
        await refused(provider, "does not list")
    assert liar.paths().count("/keys") == 1
    clock.advance(seconds=KEYS_AGAIN_SECONDS)
    for _ in range(3):
        await refused(provider, "does not list")
    assert liar.paths().count("/keys") == 2


async def test_a_provider_that_failed_is_asked_again_after_a_moment(
    liar: Liar, provider: Provider, clock: ManualClock
) -> None:
    liar.instead[DISCOVERY] = Answered(b"", status=503)
    with pytest.raises(ProviderUnavailable):
        await asyncio.gather(*(person(provider) for _ in range(5)))
    await unavailable(provider, "configuration of the provider is a 503")
    assert liar.paths() == [DISCOVERY]
    del liar.instead[DISCOVERY]
    clock.advance(seconds=FAILED_SECONDS)
    assert await person(provider) == ada(liar)


async def test_no_cookie_of_one_sign_in_is_sent_in_the_next(liar: Liar, provider: Provider) -> None:
    liar.id_token = liar.sign(email=None)
    tokens = {"id_token": liar.id_token, "access_token": "the-access-token"}
    liar.instead["/token"] = Answered(tokens, headers={"set-cookie": "session=of-ada; Path=/"})
    for _ in range(2):
        await person(provider)
    assert [headers for _, headers, _ in liar.asked if "cookie" in headers] == []


# Who answers.


async def test_a_provider_that_cannot_prove_its_name_is_not_reached(tmp_path: Path, clock: ManualClock) -> None:
    async with (
        lying_provider(make_certificate(tmp_path / "certificate.pem")) as liar,
        opened(liar.settings(), clock, trust=None) as provider,
    ):
        await unavailable(provider, "configuration of the provider was not reached")
        assert liar.asked == []


@pytest.fixture
async def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Liar]:
    """A provider on https, whose certificate this machine trusts."""
    certificate = make_certificate(tmp_path / "certificate.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with lying_provider(certificate) as one:
        yield one


async def test_a_provider_that_proves_its_name_to_this_machine_is_asked(proven: Liar, clock: ManualClock) -> None:
    async with opened(proven.settings(), clock, trust=None) as provider:
        assert await person(provider) == ada(proven)


async def test_a_provider_on_https_has_no_place_without_it(proven: Liar, clock: ManualClock) -> None:
    proven.metadata["token_endpoint"] = "http://127.0.0.1:1/token"
    async with opened(proven.settings(), clock, trust=None) as provider:
        await unavailable(provider, "the token_endpoint of the provider is not on https")
