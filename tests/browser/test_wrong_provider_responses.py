"""Wrong responses of a provider, and what a person sees of them in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey

from tests.browser.server_fixture import GROUPS, SharedBrowser, Site
from tests.providers.fake_provider import OTHER_KEY, FakeProvider, open_fake_provider

SECRET = "hush" * 16
SHARED_KEY = OctKey.import_key(SECRET, {"kid": "rsa"})
CALLBACK_CHANGES: list[tuple[str, dict[str, str], str]] = [
    ("state", {"state": "another"}, "another browser"),
    ("no state", {"state": ""}, "another browser"),
    ("issuer", {"iss": "https://evil.example"}, "(iss)"),
    ("error", {"error": "<b>no</b>"}, "The provider did not sign you in."),
]
TOKEN_CHANGES: list[tuple[str, dict[str, Any], str]] = [
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
async def site(shared_browser: SharedBrowser, tmp_path: Path, idp: FakeProvider) -> AsyncIterator[Site]:
    """A server that uses the fake provider."""
    settings = idp.settings(
        oidc_client_secret=SECRET, oidc_redirect_url=f"{shared_browser.url}/auth/callback", **GROUPS
    )
    async with shared_browser.site(tmp_path, settings) as one:
        yield one
        one.expect_no_problems()


async def is_refused(site: Site, message: str) -> None:
    """Check that a person who tries to sign in sees this message and is not signed in."""
    ada = await site.visitor()
    await ada.go("/auth/login")
    await ada.press("Sign in", role="link")
    assert ada.path.startswith("/auth/callback?")
    assert await ada.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert message in await ada.page.get_by_role("alert").inner_text()
    assert await ada.session_cookie() is None
    assert await ada.status_of() == 401
    assert await site.users() == []


async def test_a_correct_response_signs_the_person_in(site: Site) -> None:
    ada = await site.visitor()
    await ada.go("/auth/login")
    await ada.press("Sign in", role="link")
    assert ada.path == "/me"
    assert "ada@example.com" in await ada.text()


@pytest.mark.parametrize(
    ("callback_parameters", "message"),
    [case[1:] for case in CALLBACK_CHANGES],
    ids=[case[0] for case in CALLBACK_CHANGES],
)
async def test_a_wrong_callback_signs_no_one_in(
    site: Site, idp: FakeProvider, callback_parameters: dict[str, str], message: str
) -> None:
    idp.callback_parameters = callback_parameters
    await is_refused(site, message)
    assert "/token" not in idp.paths()


@pytest.mark.parametrize(
    ("signing_options", "message"), [case[1:] for case in TOKEN_CHANGES], ids=[case[0] for case in TOKEN_CHANGES]
)
async def test_a_wrong_id_token_signs_no_one_in(
    site: Site, idp: FakeProvider, signing_options: dict[str, Any], message: str
) -> None:
    idp.signing_options = signing_options
    await is_refused(site, message)
    assert "/token" in idp.paths()
