"""A provider that lies, and what a person sees of it in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey

from tests.browser.server_fixture import GROUPS, Place, World
from tests.providers.fake_provider import OTHER_KEY, FakeProvider, open_fake_provider

SECRET = "hush" * 16
SHARED_KEY = OctKey.import_key(SECRET, {"kid": "rsa"})
SENT: list[tuple[str, dict[str, str], str]] = [
    ("state", {"state": "another"}, "another browser"),
    ("no state", {"state": ""}, "another browser"),
    ("issuer", {"iss": "https://evil.example"}, "(iss)"),
    ("error", {"error": "<b>no</b>"}, "The provider did not sign you in."),
]
SIGNED: list[tuple[str, dict[str, Any], str]] = [
    ("nonce", {"nonce": "another"}, "(nonce)"),
    ("no nonce", {"nonce": None}, "(nonce)"),
    ("audience", {"aud": "somebody"}, "(aud)"),
    ("issuer", {"iss": "https://evil.example"}, "(iss)"),
    ("expired", {"exp": 1}, "(exp)"),
    ("none", {"alg": "none"}, "(alg)"),
    ("our secret", {"key": SHARED_KEY, "alg": "HS256"}, "(alg)"),
    ("another key", {"key": OTHER_KEY, "header": {"kid": "rsa"}}, "signature"),
    ("unknown key", {"key": OTHER_KEY}, "signed with a key"),
]


@pytest.fixture
async def idp() -> AsyncIterator[FakeProvider]:
    async with open_fake_provider() as one:
        yield one


@pytest.fixture
async def place(world: World, tmp_path: Path, idp: FakeProvider) -> AsyncIterator[Place]:
    """A server that has its people from the liar."""
    settings = idp.settings(oidc_client_secret=SECRET, oidc_redirect_url=f"{world.url}/auth/callback", **GROUPS)
    async with world.place(tmp_path, settings) as one:
        yield one
        one.expect_quiet()


async def is_refused(place: Place, words: str) -> None:
    """A person who signs in reads these words, and is not signed in."""
    ada = await place.visitor()
    await ada.go("/auth/login")
    await ada.press("Sign in", role="link")
    assert ada.path.startswith("/auth/callback?")
    assert await ada.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert words in await ada.page.get_by_role("alert").inner_text()
    assert await ada.secret() is None
    assert await ada.status() == 401
    assert await place.users() == []


async def test_a_correct_response_signs_the_person_in(place: Place) -> None:
    ada = await place.visitor()
    await ada.go("/auth/login")
    await ada.press("Sign in", role="link")
    assert ada.path == "/me"
    assert "ada@example.com" in await ada.text()


@pytest.mark.parametrize(("sends", "words"), [case[1:] for case in SENT], ids=[case[0] for case in SENT])
async def test_a_wrong_callback_signs_no_one_in(
    place: Place, idp: FakeProvider, sends: dict[str, str], words: str
) -> None:
    idp.callback_parameters = sends
    await is_refused(place, words)
    assert "/token" not in idp.paths()


@pytest.mark.parametrize(("lies", "words"), [case[1:] for case in SIGNED], ids=[case[0] for case in SIGNED])
async def test_a_wrong_id_token_signs_no_one_in(
    place: Place, idp: FakeProvider, lies: dict[str, Any], words: str
) -> None:
    idp.signing_options = lies
    await is_refused(place, words)
    assert "/token" in idp.paths()
