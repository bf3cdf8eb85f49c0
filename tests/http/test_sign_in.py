"""Signing in by way of a provider: what makes a session, and the many things that must not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from ingot.identity import credential_secrets
from ingot.identity.credentials import Unauthorized
from ingot.kernel.clock import ManualClock
from ingot.wiring import services
from tests.http.one_server import on_one_server
from tests.http.serving import OWN_PAGE, Served, serving
from tests.providers.fake_provider import CODE, FakeProvider, FakeResponse, open_fake_provider
from tests.providers.real_provider import real_provider

SESSION = "__Host-ingot_session"


def login_of(state: str) -> str:
    """The cookie of a sign-in."""
    return f"__Host-ingot_login_{state[:8]}"


class Browser:
    """What a browser does on the way: it keeps cookies, and follows nobody blindly."""

    def __init__(self, served: Served, idp: FakeProvider | None = None) -> None:
        self.served = served
        self.idp = idp
        self.cookies: dict[str, str] = {}

    async def get(self, path: str) -> httpx.Response:
        headers = {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        answer = await self.served.client.get(path, headers=headers if self.cookies else {})
        for kept in answer.headers.get_list("set-cookie"):
            name, _, value = kept.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer

    async def set_out(self, query: str = "") -> dict[str, str]:
        """Go to the provider: what it is asked for. It answers with the nonce that it was given."""
        answer = await self.get(f"/auth/start{query}")
        assert answer.status_code == 303, answer.text
        asked = {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        if self.idp is not None:
            self.idp.claims["nonce"] = asked["nonce"]
        return asked

    async def come_back(self, state: str | None, **more: str) -> httpx.Response:
        """Come back from the provider."""
        sent = {"code": CODE, **({} if state is None else {"state": state}), **more}
        return await self.get(f"/auth/callback?{httpx.QueryParams(sent)}")

    async def sign_in(self, query: str = "") -> httpx.Response:
        return await self.come_back((await self.set_out(query))["state"])

    async def me(self) -> httpx.Response:
        return await self.get("/api/v1/me")


@asynccontextmanager
async def place(
    folder: Path, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[tuple[Served, FakeProvider]]:
    async with open_fake_provider() as idp, serving(folder, idp.settings(**settings), clock=clock) as served:
        yield served, idp


@pytest.fixture
async def open_place(tmp_path: Path) -> AsyncIterator[tuple[Served, FakeProvider]]:
    """A server that lets in everybody whom its provider knows."""
    async with place(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def staff_place(tmp_path: Path) -> AsyncIterator[tuple[Served, FakeProvider]]:
    """A server that lets in staff alone."""
    async with place(tmp_path / "data", oidc_allowed_groups=("staff",)) as made:
        yield made


async def is_nobody(served: Served, browser: Browser, answer: httpx.Response) -> None:
    """Nobody was signed in, and nobody is known who was not before."""
    assert answer.status_code in (400, 401, 403, 503), answer.status_code
    assert SESSION not in browser.cookies
    assert (await browser.me()).status_code == 401
    assert (await served.call("GET", "/admin/users")).json()["items"] == []


async def test_who_comes_back_as_they_set_out_is_signed_in(tmp_path: Path) -> None:
    async with place(tmp_path / "data", oidc_admin_groups=("staff",)) as (served, idp):
        browser = Browser(served, idp)
        asked = await browser.set_out("?next=/docs")
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "prompt" not in asked
        answer = await browser.come_back(asked["state"])
        assert (answer.status_code, answer.headers["location"]) == (303, "/docs")
        kept = answer.headers.get_list("set-cookie")
        assert all("Secure; HttpOnly; SameSite=Lax" in one and "Path=/" in one for one in kept)
        assert browser.cookies[login_of(asked["state"])] == ""
        me = (await browser.me()).json()
        assert (me["operator"], me["user"]["issuer"], me["user"]["subject"]) == (True, idp.issuer, "ada")
        (made,) = (await served.call("GET", "/admin/audit?all=true&action=session.created")).json()["items"]
        assert (made["who"], made["name"]) == (f"user:{me['id']}", "ada@example.com")
        assert made["address"] == "127.0.0.1"
        page = (await browser.get("/me")).text
        assert "ada@example.com" in page
        assert "operator" in page


async def test_who_signs_in_is_told_in_the_log(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        with capture_logs() as logs:
            await browser.sign_in()
        (told,) = (line for line in logs if line["event"] == "signed_in")
        assert told["user_id"] == (await browser.me()).json()["id"]


async def test_the_same_person_is_one_user_whatever_their_email_is(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        first = Browser(served, idp)
        await first.sign_in()
        idp.claims |= {"email": "new@example.com", "groups": ["others"]}
        second = Browser(served, idp)
        await second.sign_in()
        idp.claims |= {"sub": "another", "email": "new@example.com"}
        third = Browser(served, idp)
        await third.sign_in()
        ids = [(await browser.me()).json()["id"] for browser in (first, second, third)]
        assert ids[0] == ids[1] != ids[2]
        assert (await first.me()).json()["user"]["groups"] == ["others"]


def without(state: str) -> str | None:
    return None


@on_one_server(
    "spoil", [without, lambda state: state[:-1], lambda state: state.swapcase(), lambda _: "", lambda _: "é"]
)
async def test_a_state_that_is_not_the_browsers_is_refused(
    open_place: tuple[Served, FakeProvider], spoil: Callable[[str], str | None]
) -> None:
    served, idp = open_place
    browser = Browser(served, idp)
    asked = await browser.set_out()
    await is_nobody(served, browser, await browser.come_back(spoil(asked["state"])))
    assert "/token" not in idp.paths()


async def test_the_state_of_another_browser_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        evil, ada = Browser(served, idp), Browser(served, idp)
        asked = await evil.set_out()
        await is_nobody(served, ada, await ada.come_back(asked["state"]))
        await ada.set_out()
        await is_nobody(served, ada, await ada.come_back(asked["state"]))
        assert "/token" not in idp.paths()


async def test_a_state_is_good_once(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        asked = await browser.set_out()
        name = login_of(asked["state"])
        secret = browser.cookies[name]
        await browser.come_back(asked["state"])
        again = Browser(served, idp)
        again.cookies[name] = secret
        answer = await again.come_back(asked["state"])
        assert answer.status_code == 401
        assert SESSION not in again.cookies
        assert idp.paths().count("/token") == 1


async def test_sign_ins_in_several_tabs_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        tabs = [await browser.set_out() for _ in range(3)]
        for asked in (tabs[1], tabs[2], tabs[0]):
            idp.claims["nonce"] = asked["nonce"]
            assert (await browser.come_back(asked["state"])).status_code == 303
        assert (await browser.me()).status_code == 200
        assert [value for name, value in browser.cookies.items() if name != SESSION] == ["", "", ""]


async def test_somebody_can_come_as_somebody_else(tmp_path: Path) -> None:
    async with place(tmp_path / "data", oidc_allowed_groups=("bosses",)) as (served, idp):
        browser = Browser(served, idp)
        refused = await browser.sign_in()
        assert "/auth/start?other=true" in refused.text
        assert (await browser.set_out("?other=true"))["prompt"] == "login"


async def test_a_state_that_is_old_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    async with place(tmp_path / "data", clock) as (served, idp):
        browser = Browser(served, idp)
        asked = await browser.set_out()
        clock.advance(seconds=601)
        await is_nobody(served, browser, await browser.come_back(asked["state"]))


async def test_a_sign_in_that_nobody_began_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        for secret in (credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX), "x", ""):
            state = credential_secrets.derive_secret(secret, "state")
            browser.cookies[login_of(state)] = secret
            await is_nobody(served, browser, await browser.come_back(state))


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
async def test_a_wrong_id_token_signs_no_one_in(
    staff_place: tuple[Served, FakeProvider], name: str, claims: dict[str, Any]
) -> None:
    served, idp = staff_place
    browser = Browser(served, idp)
    asked = await browser.set_out()
    idp.metadata.pop("userinfo_endpoint", None)
    idp.id_token = idp.sign(**claims)
    answer = await browser.come_back(asked["state"])
    await is_nobody(served, browser, answer)
    assert answer.status_code == 401
    assert idp.id_token not in answer.text
    assert "text/html" in answer.headers["content-type"]


async def test_an_answer_of_another_provider_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        asked = await browser.set_out()
        await is_nobody(served, browser, await browser.come_back(asked["state"], iss="https://evil.example"))
        assert "/token" not in idp.paths()


async def test_what_the_provider_refuses_is_told(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        asked = await browser.set_out()
        denied = await browser.come_back(asked["state"], error="access_denied", error_description="<script>")
        await is_nobody(served, browser, denied)
        assert "<script>" not in denied.text


async def test_a_session_is_renewed_without_a_question_or_by_the_sign_in_page(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        await browser.sign_in()
        old = browser.cookies[SESSION]
        asked = await browser.set_out("?silent=true&next=/me")
        assert asked["prompt"] == "none"
        await browser.come_back(asked["state"])
        assert browser.cookies[SESSION] != old
        assert (await browser.me()).status_code == 200
        before = Browser(served, idp)
        before.cookies[SESSION] = old
        assert (await before.me()).status_code == 401
        asked = await browser.set_out("?silent=true&next=/me")
        answer = await browser.come_back(asked["state"], error="login_required")
        assert (answer.status_code, answer.headers["location"]) == (303, "/auth/login?next=/me")


@on_one_server(
    "page",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "evil", "",
     "/%0d%0aSet-Cookie:x", "/" + "a" * 2000, "/me\u2028x", " //evil.example", "/\t/evil.example"],
)  # fmt: skip
async def test_nobody_is_led_elsewhere(open_place: tuple[Served, FakeProvider], page: str) -> None:
    served, idp = open_place
    browser = Browser(served, idp)
    answer = await browser.sign_in(f"?{httpx.QueryParams({'next': page})}")
    assert answer.status_code == 303
    assert answer.headers["location"] in ("/me", "/%0d%0aSet-Cookie:x")
    assert "x" not in browser.cookies


async def test_who_was_put_out_is_not_signed_in(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        await browser.sign_in()
        user = (await browser.me()).json()["id"]
        await served.call("POST", f"/admin/users/{user}/disable")
        again = Browser(served, idp)
        answer = await again.sign_in()
        assert answer.status_code == 401
        assert "disabled" in answer.text
        assert SESSION not in again.cookies


async def test_who_is_in_no_group_any_more_that_may_come_in_is_out_with_their_tokens(tmp_path: Path) -> None:
    """What the provider says counts at once, also when it says that they may not come in."""
    async with place(tmp_path / "data", oidc_allowed_groups=("staff",), oidc_admin_groups=("ops",)) as (served, idp):
        idp.claims["groups"] = ["staff", "ops"]
        browser, elsewhere = Browser(served, idp), Browser(served, idp)
        await browser.sign_in()
        await elsewhere.sign_in()
        order = {"description": "mine", "grants": [{"action": "*"}], "operator": True}
        cookies = {"cookie": f"{SESSION}={browser.cookies[SESSION]}", **OWN_PAGE}
        made = await served.client.post("/api/v1/me/tokens", headers=cookies, json=order)
        token = made.json()["token"]
        assert (await served.call("GET", "/admin/users", token=token)).status_code == 200
        idp.claims["groups"] = ["leavers"]
        assert (await browser.sign_in()).status_code == 401
        assert (await served.call("GET", "/admin/users", token=token)).status_code == 401
        assert (await elsewhere.me()).status_code == 401
        (user,) = (await served.call("GET", "/admin/users")).json()["items"]
        assert user["groups"] == ["leavers"]


async def test_groups_that_may_come_in_no_more_end_sessions_and_tokens(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        await browser.sign_in()
        assert (await browser.me()).status_code == 200
        settings = idp.settings(oidc_allowed_groups=("others",), data=tmp_path / "data")
    async with services.open(settings=settings) as ingot:
        with pytest.raises(Unauthorized):
            await ingot.authenticator.authenticate_session(browser.cookies[SESSION])


async def test_a_provider_that_is_away_is_told_of(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        idp.instead["/.well-known/openid-configuration"] = FakeResponse({}, status=500)
        answer = await Browser(served, idp).get("/auth/start")
        assert answer.status_code == 503
        assert "provider_unavailable" in answer.text
        assert "text/html" in answer.headers["content-type"]


async def test_whoever_runs_the_server_reads_why_somebody_did_not_come_in(tmp_path: Path) -> None:
    async with place(tmp_path / "data", oidc_allowed_groups=("staff",)) as (served, idp):
        idp.claims["groups"] = ["visitors"]
        with capture_logs() as logs:
            await Browser(served, idp).sign_in()
        refused = next(line for line in logs if line["event"] == "sign_in_refused")
        assert (refused["event"], refused["log_level"]) == ("sign_in_refused", "info")
        assert "groups" in refused["detail"]
    async with serving(tmp_path / "other", idp.settings()) as served:
        with capture_logs() as logs:
            assert (await Browser(served).get("/auth/start")).status_code == 503
        failed = next(line for line in logs if line["event"] == "sign_in_failed")
        assert (failed["log_level"], failed["code"]) == ("warning", "provider_unavailable")
        assert "configuration" in failed["detail"]
        assert failed["cause"]


async def test_without_a_provider_there_is_nowhere_to_go(served: Served) -> None:
    answer = await served.client.get("/auth/start")
    assert (answer.status_code, answer.headers["location"]) == (303, "/auth/login")
    assert (await served.client.get("/auth/callback?code=x&state=y")).status_code == 401
    page = await served.client.get("/auth/login")
    assert "INGOT_OIDC_ISSUER" in page.text
    assert (await served.client.get("/me")).headers["location"] == "/auth/login?next=/me"
    posted = await served.client.post("/me/sessions/x/end")
    assert posted.headers["location"] == "/auth/login?next=/me", "nobody comes back to what is no page"


async def test_nobody_sets_out_without_end(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        browser = Browser(served, idp)
        answers = [(await browser.get("/auth/start")).status_code for _ in range(100)]
        assert answers[0] == 303
        assert 429 in answers


async def test_pages_let_nothing_in_that_is_not_ours(served: Served) -> None:
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


async def test_what_a_provider_calls_somebody_is_text(tmp_path: Path) -> None:
    async with place(tmp_path / "data") as (served, idp):
        idp.claims |= {"name": "<script>alert(1)</script>", "groups": ['"><b>']}
        browser = Browser(served, idp)
        await browser.sign_in()
        page = (await browser.get("/me")).text
        assert "<script" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page


@pytest.mark.node
@pytest.mark.provider
async def test_a_real_provider_signs_people_in_and_takes_a_code_once(tmp_path: Path) -> None:
    async with (
        real_provider("http://127.0.0.1:1/auth/callback") as provider,
        serving(tmp_path / "data", provider.settings(oidc_allowed_groups=("staff",))) as served,
    ):
        await served.give_groups(staff="member")
        browser = Browser(served)
        start = await browser.get("/auth/start")
        sent = await provider.sign_in(start.headers["location"], "bob")
        answer = await browser.get(f"/auth/callback?{httpx.QueryParams(sent)}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/me")
        me = (await browser.me()).json()
        assert (me["user"]["email"], me["tenants"][0]["role"]) == ("bob@example.com", "member")
        other = Browser(served)
        start = await other.get("/auth/start")
        state = parse_qs(urlsplit(start.headers["location"]).query)["state"][0]
        replay = await other.get(f"/auth/callback?{httpx.QueryParams({**sent, 'state': state})}")
        assert replay.status_code == 401
        assert SESSION not in other.cookies
        eve = Browser(served)
        start = await eve.get("/auth/start")
        sent = await provider.sign_in(start.headers["location"], "eve")
        assert (await eve.get(f"/auth/callback?{httpx.QueryParams(sent)}")).status_code == 401
