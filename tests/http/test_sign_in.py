"""Signing in with a provider: what creates a session, and the many responses that must not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from ingot.http import authentication
from ingot.http.cookies import BROWSER_COOKIE
from ingot.http.rate_limits import RateLimit
from ingot.identity import credential_secrets
from ingot.identity.credentials import Unauthorized
from ingot.identity.sessions import Login
from ingot.kernel.clock import ManualClock
from ingot.wiring import services
from tests.http.one_server import on_one_server
from tests.http.serving import OWN_PAGE, Served, serving
from tests.providers.fake_provider import CODE, FakeProvider, FakeResponse, open_fake_provider
from tests.providers.real_provider import real_provider

SESSION = "__Host-ingot_session"


def login_of(state: str) -> str:
    """The name of the cookie of a login."""
    return f"__Host-ingot_login_{state[:8]}"


class Browser:
    """A browser that keeps cookies and does not follow redirects."""

    def __init__(self, served: Served, fake: FakeProvider | None = None) -> None:
        self.served = served
        self.fake_provider = fake
        self.cookies: dict[str, str] = {}

    async def get(self, path: str) -> httpx.Response:
        headers = {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        response = await self.served.client.get(path, headers=headers if self.cookies else {})
        for cookie in response.headers.get_list("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return response

    async def start_login(self, query: str = "") -> dict[str, str]:
        """Start a login, and return the parameters for the provider. Its ID token will have their nonce."""
        response = await self.get(f"/auth/start{query}")
        assert response.status_code == 303, response.text
        login = {name: value for name, (value,) in parse_qs(urlsplit(response.headers["location"]).query).items()}
        if self.fake_provider is not None:
            self.fake_provider.claims["nonce"] = login["nonce"]
        return login

    async def call_back(self, state: str | None, **more: str) -> httpx.Response:
        """Request the callback URL as the provider would."""
        parameters = {"code": CODE, **({} if state is None else {"state": state}), **more}
        return await self.get(f"/auth/callback?{httpx.QueryParams(parameters)}")

    async def sign_in(self, query: str = "") -> httpx.Response:
        return await self.call_back((await self.start_login(query))["state"])

    async def me(self) -> httpx.Response:
        return await self.get("/api/v1/me")


@asynccontextmanager
async def serving_people(
    folder: Path, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[tuple[Served, FakeProvider]]:
    async with open_fake_provider() as fake, serving(folder, fake.settings(**settings), clock=clock) as served:
        yield served, fake


@pytest.fixture
async def open_site(tmp_path: Path) -> AsyncIterator[tuple[Served, FakeProvider]]:
    """A server that every person of the provider may use."""
    async with serving_people(tmp_path / "data") as served_and_fake:
        yield served_and_fake


@pytest.fixture
async def staff_site(tmp_path: Path) -> AsyncIterator[tuple[Served, FakeProvider]]:
    """A server that only the group `staff` may use."""
    async with serving_people(tmp_path / "data", oidc_allowed_groups=("staff",)) as served_and_fake:
        yield served_and_fake


async def expect_rejected(served: Served, browser: Browser, response: httpx.Response) -> None:
    """Check that the sign-in failed, and that no user was created."""
    assert response.status_code in (400, 401, 403, 503), response.status_code
    assert SESSION not in browser.cookies
    assert (await browser.me()).status_code == 401
    assert (await served.call("GET", "/admin/users")).json()["items"] == []


async def test_a_complete_login_creates_a_session(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data", oidc_admin_groups=("staff",)) as (served, fake):
        browser = Browser(served, fake)
        login = await browser.start_login("?next=/docs")
        assert login["response_type"] == "code"
        assert login["code_challenge_method"] == "S256"
        assert "prompt" not in login
        response = await browser.call_back(login["state"])
        assert (response.status_code, response.headers["location"]) == (303, "/docs")
        cookies = response.headers.get_list("set-cookie")
        assert all("Secure; HttpOnly; SameSite=Lax" in cookie and "Path=/" in cookie for cookie in cookies)
        assert browser.cookies[login_of(login["state"])] == ""
        me = (await browser.me()).json()
        assert (me["operator"], me["user"]["issuer"], me["user"]["subject"]) == (True, fake.issuer, "ada")
        (entry,) = (await served.call("GET", "/admin/audit?all=true&action=session.created")).json()["items"]
        assert (entry["who"], entry["name"]) == (f"user:{me['id']}", "ada@example.com")
        assert entry["address"] == "127.0.0.1"
        page = (await browser.get("/me")).text
        assert "ada@example.com" in page
        assert "operator" in page


async def test_a_sign_in_is_logged(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        with capture_logs() as logs:
            await browser.sign_in()
        (entry,) = (line for line in logs if line["event"] == "signed_in")
        assert entry["user_id"] == (await browser.me()).json()["id"]


async def test_a_person_with_a_new_email_stays_the_same_user(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        first = Browser(served, fake)
        await first.sign_in()
        fake.claims |= {"email": "new@example.com", "groups": ["others"]}
        second = Browser(served, fake)
        await second.sign_in()
        fake.claims |= {"sub": "another", "email": "new@example.com"}
        third = Browser(served, fake)
        await third.sign_in()
        ids = [(await browser.me()).json()["id"] for browser in (first, second, third)]
        assert ids[0] == ids[1] != ids[2]
        assert (await first.me()).json()["user"]["groups"] == ["others"]


def remove(state: str) -> str | None:
    return None


@on_one_server("alter", [remove, lambda state: state[:-1], lambda state: state.swapcase(), lambda _: "", lambda _: "é"])
async def test_an_altered_state_is_rejected(
    open_site: tuple[Served, FakeProvider], alter: Callable[[str], str | None]
) -> None:
    served, fake = open_site
    browser = Browser(served, fake)
    login = await browser.start_login()
    await expect_rejected(served, browser, await browser.call_back(alter(login["state"])))
    assert "/token" not in fake.paths()


async def test_the_state_of_another_browser_is_rejected(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        evil, ada = Browser(served, fake), Browser(served, fake)
        login = await evil.start_login()
        await expect_rejected(served, ada, await ada.call_back(login["state"]))
        await ada.start_login()
        await expect_rejected(served, ada, await ada.call_back(login["state"]))
        assert "/token" not in fake.paths()


async def test_a_state_can_be_used_once(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        login = await browser.start_login()
        name = login_of(login["state"])
        secret = browser.cookies[name]
        await browser.call_back(login["state"])
        again = Browser(served, fake)
        again.cookies[name] = secret
        response = await again.call_back(login["state"])
        assert response.status_code == 401
        assert SESSION not in again.cookies
        assert fake.paths().count("/token") == 1


async def test_logins_in_several_tabs_are_independent(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        tabs = [await browser.start_login() for _ in range(3)]
        for login in (tabs[1], tabs[2], tabs[0]):
            fake.claims["nonce"] = login["nonce"]
            assert (await browser.call_back(login["state"])).status_code == 303
        assert (await browser.me()).status_code == 200
        assert [browser.cookies[login_of(login["state"])] for login in tabs] == ["", "", ""]


async def test_a_rejected_person_can_sign_in_as_another_person(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data", oidc_allowed_groups=("bosses",)) as (served, fake):
        browser = Browser(served, fake)
        rejected = await browser.sign_in()
        assert "/auth/start?other=true" in rejected.text
        assert (await browser.start_login("?other=true"))["prompt"] == "login"


async def test_an_expired_state_is_rejected(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving_people(tmp_path / "data", clock) as (served, fake):
        browser = Browser(served, fake)
        login = await browser.start_login()
        clock.advance(seconds=601)
        await expect_rejected(served, browser, await browser.call_back(login["state"]))


async def test_a_callback_without_a_login_is_rejected(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        for secret in (credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX), "x", ""):
            state = credential_secrets.derive_secret(secret, "state")
            browser.cookies[login_of(state)] = secret
            await expect_rejected(served, browser, await browser.call_back(state))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("nonce", {"nonce": "another"}),
    ("audience", {"aud": "somebody"}),
    ("party", {"aud": ["ingot", "other"], "azp": "other"}),
    ("issuer", {"iss": "https://evil.example"}),
    ("expired", {"exp": 1}),
    ("future", {"iat": 99_999_999_999}),
    ("email", {"email_verified": False}),
    ("groups as a text", {"groups": "staff"}),
    ("no groups", {"groups": None}),
    ("too many groups", {"groups": ["staff", *(f"g{n}" for n in range(2000))]}),
    ("other groups", {"groups": ["guests"]}),
    ("no subject", {"sub": None}),
]


@on_one_server(("name", "claims"), WRONG)
async def test_an_invalid_id_token_creates_no_session(
    staff_site: tuple[Served, FakeProvider], name: str, claims: dict[str, Any]
) -> None:
    served, fake = staff_site
    browser = Browser(served, fake)
    login = await browser.start_login()
    fake.metadata.pop("userinfo_endpoint", None)
    fake.id_token = fake.sign(**claims)
    response = await browser.call_back(login["state"])
    await expect_rejected(served, browser, response)
    assert response.status_code == 401
    assert fake.id_token not in response.text
    assert "text/html" in response.headers["content-type"]


async def test_a_callback_of_another_issuer_is_rejected(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        login = await browser.start_login()
        await expect_rejected(served, browser, await browser.call_back(login["state"], iss="https://evil.example"))
        assert "/token" not in fake.paths()


async def test_an_error_of_the_provider_is_shown_escaped(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        login = await browser.start_login()
        denied = await browser.call_back(login["state"], error="access_denied", error_description="<script>")
        await expect_rejected(served, browser, denied)
        assert "<script>" not in denied.text


async def test_a_session_is_renewed_silently_or_on_the_sign_in_page(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        await browser.sign_in()
        old = browser.cookies[SESSION]
        login = await browser.start_login("?silent=true&next=/me")
        assert login["prompt"] == "none"
        await browser.call_back(login["state"])
        assert browser.cookies[SESSION] != old
        assert (await browser.me()).status_code == 200
        old_browser = Browser(served, fake)
        old_browser.cookies[SESSION] = old
        assert (await old_browser.me()).status_code == 401
        login = await browser.start_login("?silent=true&next=/me")
        response = await browser.call_back(login["state"], error="login_required")
        assert (response.status_code, response.headers["location"]) == (303, "/auth/login?next=/me")


@on_one_server(
    "page",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "evil", "",
     "/%0d%0aSet-Cookie:x", "/" + "a" * 2000, "/me\u2028x", " //evil.example", "/\t/evil.example"],
)  # fmt: skip
async def test_the_next_page_cannot_be_on_another_site(open_site: tuple[Served, FakeProvider], page: str) -> None:
    served, fake = open_site
    browser = Browser(served, fake)
    response = await browser.sign_in(f"?{httpx.QueryParams({'next': page})}")
    assert response.status_code == 303
    assert response.headers["location"] in ("/me", "/%0d%0aSet-Cookie:x")
    assert "x" not in browser.cookies


async def test_a_disabled_person_cannot_sign_in(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        await browser.sign_in()
        user = (await browser.me()).json()["id"]
        await served.call("POST", f"/admin/users/{user}/disable")
        again = Browser(served, fake)
        response = await again.sign_in()
        assert response.status_code == 401
        assert "disabled" in response.text
        assert SESSION not in again.cookies


async def test_a_person_who_left_the_allowed_groups_loses_sessions_and_tokens(tmp_path: Path) -> None:
    """The new groups take effect at once, even if the sign-in that reports them is rejected."""
    async with serving_people(tmp_path / "data", oidc_allowed_groups=("staff",), oidc_admin_groups=("ops",)) as (
        served,
        fake,
    ):
        fake.claims["groups"] = ["staff", "ops"]
        browser, second_browser = Browser(served, fake), Browser(served, fake)
        await browser.sign_in()
        await second_browser.sign_in()
        order = {"description": "mine", "grants": [{"action": "*"}], "operator": True}
        cookies = {"cookie": f"{SESSION}={browser.cookies[SESSION]}", **OWN_PAGE}
        made = await served.client.post("/api/v1/me/tokens", headers=cookies, json=order)
        token = made.json()["token"]
        assert (await served.call("GET", "/admin/users", token=token)).status_code == 200
        fake.claims["groups"] = ["leavers"]
        assert (await browser.sign_in()).status_code == 401
        assert (await served.call("GET", "/admin/users", token=token)).status_code == 401
        assert (await second_browser.me()).status_code == 401
        (user,) = (await served.call("GET", "/admin/users")).json()["items"]
        assert user["groups"] == ["leavers"]


REFUSALS: list[dict[str, Any]] = [
    {"groups": None},
    {"groups": "staff"},
    {"groups": ["staff", *(f"g{number}" for number in range(2000))]},
    {"email_verified": False},
    {"email_verified": "perhaps"},
]


@pytest.mark.parametrize("claims", REFUSALS)
async def test_a_refused_sign_in_ends_sessions_tokens_and_streams(tmp_path: Path, claims: dict[str, Any]) -> None:
    """The provider has identified the person, so that what it reports applies to their other sign-ins, too."""
    settings: dict[str, Any] = {"oidc_admin_groups": ("ops",)}
    async with serving_people(tmp_path / "data", **settings) as (served, fake):
        fake.claims |= {"groups": ["staff"], "email": "ada@example.com", "email_verified": True}
        fake.metadata.pop("userinfo_endpoint", None)
        await served.give_groups(staff="admin")
        browser, second_browser = Browser(served, fake), Browser(served, fake)
        await browser.sign_in()
        await second_browser.sign_in()
        cookies = {"cookie": f"{SESSION}={second_browser.cookies[SESSION]}", **OWN_PAGE}
        order = {"description": "mine", "grants": [{"action": "jobs.read"}]}
        token = (await served.client.post("/api/v1/me/tokens", headers=cookies, json=order)).json()["token"]
        assert (await served.call("GET", "/jobs", token=token)).status_code == 200
        async with served.client.stream("GET", "/api/v1/events/stream", headers=cookies) as stream:
            assert stream.status_code == 200
            login = await browser.start_login()
            valid_claims = dict(fake.claims)
            fake.claims |= claims
            assert (await browser.call_back(login["state"])).status_code == 401
            assert (await served.call("GET", "/jobs", token=token)).status_code == 401
            assert (await second_browser.me()).status_code == 401
            assert "event: end" in (await stream.aread()).decode()
        (user,) = (await served.call("GET", "/admin/users")).json()["items"]
        assert user["refused"] is True
        entry = (await served.call("GET", "/admin/audit?all=true&action=user.turned_away")).json()["items"][0]
        assert entry["target"] == f"user/{user['id']}"
        fake.claims = valid_claims
        assert (await browser.sign_in()).status_code == 303
        assert (await served.call("GET", "/jobs", token=token)).status_code == 200
        assert (await served.call("GET", f"/admin/users/{user['id']}")).json()["refused"] is False


async def test_a_change_of_the_allowed_groups_ends_sessions(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        await browser.sign_in()
        assert (await browser.me()).status_code == 200
        settings = fake.settings(oidc_allowed_groups=("others",), data=tmp_path / "data")
    async with services.open(settings=settings) as ingot:
        with pytest.raises(Unauthorized):
            await ingot.authenticator.authenticate_session(browser.cookies[SESSION])


async def test_an_unavailable_provider_is_reported(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        fake.overrides["/.well-known/openid-configuration"] = FakeResponse({}, status=500)
        response = await Browser(served, fake).get("/auth/start")
        assert response.status_code == 503
        assert "provider_unavailable" in response.text
        assert "text/html" in response.headers["content-type"]


async def test_a_rejected_or_failed_sign_in_is_logged_with_its_reason(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data", oidc_allowed_groups=("staff",)) as (served, fake):
        fake.claims["groups"] = ["visitors"]
        with capture_logs() as logs:
            await Browser(served, fake).sign_in()
        rejected = next(line for line in logs if line["event"] == "sign_in_refused")
        assert (rejected["event"], rejected["log_level"]) == ("sign_in_refused", "info")
        assert "groups" in rejected["detail"]
    async with serving(tmp_path / "other", fake.settings()) as served:
        with capture_logs() as logs:
            assert (await Browser(served).get("/auth/start")).status_code == 503
        failed = next(line for line in logs if line["event"] == "sign_in_failed")
        assert (failed["log_level"], failed["code"]) == ("warning", "provider_unavailable")
        assert "configuration" in failed["detail"]
        assert failed["cause"]


async def test_without_a_provider_the_sign_in_page_explains_what_to_set(served: Served) -> None:
    response = await served.client.get("/auth/start")
    assert (response.status_code, response.headers["location"]) == (303, "/auth/login")
    assert (await served.client.get("/auth/callback?code=x&state=y")).status_code == 401
    page = await served.client.get("/auth/login")
    assert "INGOT_OIDC_ISSUER" in page.text
    assert (await served.client.get("/me")).headers["location"] == "/auth/login?next=/me"
    posted = await served.client.post("/me/sessions/x/end")
    assert posted.headers["location"] == "/auth/login?next=/me", "the next page is not a form action"


async def test_the_rate_of_logins_is_limited(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        responses = [(await browser.get("/auth/start")).status_code for _ in range(100)]
        assert responses[0] == 303
        assert 429 in responses


def embedded(site: str, **more: str) -> dict[str, str]:
    """The headers of a request that a page makes for an image."""
    return {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image", **more}


@pytest.mark.parametrize(
    "headers",
    [
        embedded("cross-site"),
        embedded("same-site"),
        embedded("cross-site", **{"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}),
        embedded(
            "cross-site", **{"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-purpose": "prefetch"}
        ),
    ],
)
async def test_a_page_of_another_site_cannot_use_up_the_limit_of_sign_ins(
    tmp_path: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "ANONYMOUS_RATE", RateLimit(0.001, 3))
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        for path in ("/auth/start", "/auth/callback?state=x&code=y", "/auth/login", "/auth/link?code=x"):
            for _ in range(10):
                response = await served.client.get(path, headers=headers)
                assert response.status_code in (200, 403), path
                assert "set-cookie" not in response.headers
        for _ in range(10):
            posted = await served.client.post("/auth/link?code=x", headers=headers)
            assert posted.status_code == 403
            shown = {**headers, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
            shown.pop("sec-purpose", None)
            assert (await served.client.get("/auth/callback?state=x&code=y", headers=shown)).status_code == 401
        assert (await browser.sign_in()).status_code == 303


async def test_other_clients_cannot_use_up_the_limit_of_a_browser_that_signed_in_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        browser = Browser(served, fake)
        await browser.sign_in()
        first = browser.cookies[BROWSER_COOKIE]
        monkeypatch.setattr(authentication, "ALL_ANONYMOUS_RATE", RateLimit(0.001, 3))
        assert 429 in [(await served.client.get("/auth/start")).status_code for _ in range(10)]
        assert (await browser.sign_in()).status_code == 303
        assert browser.cookies[BROWSER_COOKIE] == first
        for forged in ("x", f"{first}0", f"other.{first.partition('.')[2]}", ".", "é"):
            cookie = {b"cookie": f"{BROWSER_COOKIE}={forged}".encode()}
            assert (await served.client.get("/auth/start", headers=cookie)).status_code == 429, forged
        monkeypatch.setattr(authentication, "ANONYMOUS_RATE", RateLimit(0.001, 3))
        assert 429 in [(await browser.get("/auth/start")).status_code for _ in range(70)]


async def test_only_failed_callbacks_with_a_valid_state_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        logins = [Browser(served, fake) for _ in range(6)]
        states = [(await login.start_login())["state"] for login in logins]
        monkeypatch.setattr(authentication, "ANONYMOUS_RATE", RateLimit(0.001, 2))
        for login, state in zip(logins[:3], states[:3], strict=True):
            fake.claims["nonce"] = Login(login.cookies[login_of(state)]).nonce
            assert (await login.call_back(state)).status_code == 303
        for login, state in zip(logins[3:5], states[3:5], strict=True):
            assert (await login.call_back(state, error="access_denied")).status_code == 401
        assert (await logins[5].call_back(states[5])).status_code == 429


async def test_sign_in_pages_load_nothing_from_other_sites(served: Served) -> None:
    code = '"><img src=x onerror=alert(1)>'
    headers = await served.link()
    for path in ("/auth/login", f"/auth/link?{httpx.QueryParams({'code': code})}", "/auth/callback", "/me"):
        page = await served.client.get(path, headers=headers)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert "<img" not in page.text


async def test_names_and_groups_of_the_provider_are_escaped(tmp_path: Path) -> None:
    async with serving_people(tmp_path / "data") as (served, fake):
        fake.claims |= {"name": "<script>alert(1)</script>", "groups": ['"><b>']}
        browser = Browser(served, fake)
        await browser.sign_in()
        page = (await browser.get("/me")).text
        assert "<script" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page


@pytest.mark.node
@pytest.mark.provider
async def test_a_real_provider_signs_people_in_and_accepts_a_code_once(tmp_path: Path) -> None:
    async with (
        real_provider("http://127.0.0.1:1/auth/callback") as provider,
        serving(tmp_path / "data", provider.settings(oidc_allowed_groups=("staff",))) as served,
    ):
        await served.give_groups(staff="member")
        browser = Browser(served)
        start = await browser.get("/auth/start")
        parameters = await provider.sign_in(start.headers["location"], "bob")
        response = await browser.get(f"/auth/callback?{httpx.QueryParams(parameters)}")
        assert (response.status_code, response.headers["location"]) == (303, "/me")
        me = (await browser.me()).json()
        assert (me["user"]["email"], me["tenants"][0]["role"]) == ("bob@example.com", "member")
        other = Browser(served)
        start = await other.get("/auth/start")
        state = parse_qs(urlsplit(start.headers["location"]).query)["state"][0]
        replay = await other.get(f"/auth/callback?{httpx.QueryParams({**parameters, 'state': state})}")
        assert replay.status_code == 401
        assert SESSION not in other.cookies
        eve = Browser(served)
        start = await eve.get("/auth/start")
        parameters = await provider.sign_in(start.headers["location"], "eve")
        assert (await eve.get(f"/auth/callback?{httpx.QueryParams(parameters)}")).status_code == 401
