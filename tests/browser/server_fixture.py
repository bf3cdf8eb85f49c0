"""A server, a real provider and real browsers, as people meet them. Nothing else can be reached from there.

The server is `localhost` and the provider `127.0.0.1`, which are two sites to a browser, as they are in life.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, WebError
from playwright.async_api import async_playwright as playwright

from ingot.http.cookies import SESSION_COOKIE
from ingot.http.server import listen
from ingot.kernel.clock import Clock
from ingot.settings import Settings
from tests.http.serving import Served, serving
from tests.providers.programs import browser as browser_program
from tests.providers.real_provider import ACCOUNTS, RealProvider, real_provider

WAIT_MS_MAX: Final = 8_000
AWAY: Final = "ingot.example"  # The server, as somebody at another machine knows it.
ARGUMENTS: Final = (
    f"--host-resolver-rules=MAP {AWAY} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
GROUPS: Final[dict[str, Any]] = {"oidc_allowed_groups": ("staff",), "oidc_admin_groups": ("ops",)}
REFUSED: Final = "Failed to load resource: the server responded with a status of 4"


class Visitor:
    """Somebody at a browser of their own, with all that went wrong in it."""

    def __init__(self, context: BrowserContext, page: Page, place: Place) -> None:
        self.context = context
        self.page = page
        self.place = place
        self.loud = False  # Whether it goes elsewhere too, or has something to complain of.
        self.wrong: list[str] = []
        self.asked: list[str] = []
        context.on("console", self._note_console)
        context.on("weberror", self._note_error)
        context.on("request", self._note_request)
        context.on("response", self._note_response)

    async def go(self, path: str) -> Response:
        """Open a page of the server."""
        answer = await self.page.goto(self.place.url + path)
        assert answer is not None
        return answer

    async def fill_in(self, login: str) -> None:
        """Give an account at the form of the provider."""
        await self.page.get_by_label("Account").fill(login)
        await self.press("Sign in")

    async def press(self, name: str, *, role: Any = "button") -> None:
        """Press a button, or follow a link, and wait for the page that it leads to."""
        async with self.page.expect_event("domcontentloaded"):
            await self.page.get_by_role(role, name=name).click()
        await self.page.wait_for_load_state()

    async def sign_in(self, login: str = "bob") -> None:
        """Come to one's own page by way of the provider."""
        await self.go("/me")
        await self.press("Sign in", role="link")
        await self.fill_in(login)
        assert self.path == "/me", await self.text()

    async def sign_in_as_operator(self) -> None:
        """Come to one's own page with a link."""
        await self.page.goto(await self.place.link())
        await self.press("Sign in")
        assert self.path == "/me", await self.text()

    async def text(self) -> str:
        """What is to be read on the page."""
        return " ".join((await self.page.locator("body").inner_text()).split())

    async def secret(self) -> str | None:
        """The session that the browser keeps."""
        return next((one["value"] for one in await self.context.cookies() if one["name"] == SESSION_COOKIE), None)

    async def status(self, path: str = "/api/v1/me") -> int:
        """What the server answers a page of ours that asks for this."""
        asked = await self.page.evaluate("path => fetch(path).then(answer => answer.status)", path)
        return int(asked)

    @property
    def path(self) -> str:
        """Which page of the server it is, or the whole address when it is none."""
        return self.page.url.removeprefix(self.place.url)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.wrong.append(f"console: {message.text}")

    def _note_error(self, error: WebError) -> None:
        self.wrong.append(f"script: {error.error}")

    def _note_request(self, request: Request) -> None:
        self.asked.append(request.url)

    def _note_response(self, response: Response) -> None:
        if response.status >= 400 and response.request.resource_type not in ("document", "fetch"):
            self.wrong.append(f"{response.status}: {response.url}")


class Place:
    """A server with a store of its own, and who comes to it."""

    def __init__(self, served: Served, provider: RealProvider, browser: Browser, url: str, issuer: str) -> None:
        self.served = served
        self.provider = provider
        self.url = url
        self.visitors: list[Visitor] = []
        self.origins = {url, issuer}
        self._browser = browser

    async def visitor(self, **options: Any) -> Visitor:
        """Somebody with a browser that was never here."""
        context = await self._browser.new_context(**options)
        context.set_default_timeout(WAIT_MS_MAX)
        visitor = Visitor(context, await context.new_page(), self)
        self.visitors.append(visitor)
        return visitor

    async def link(self) -> str:
        """A link of the operator."""
        headers = {"authorization": f"Bearer {self.served.operator}"}
        answer = await self.served.client.post(f"{self.url}/api/v1/admin/links", headers=headers)
        return str(answer.json()["url"])

    async def users(self) -> list[dict[str, Any]]:
        """Whom the server knows."""
        found: list[dict[str, Any]] = (await self.served.call("GET", "/admin/users")).json()["items"]
        return found

    async def sessions(self, user: str) -> list[dict[str, Any]]:
        """Where somebody is signed in, as the server knows."""
        found: list[dict[str, Any]] = (await self.served.call("GET", f"/admin/users/{user}/sessions")).json()["items"]
        return found

    async def close(self) -> None:
        """Everybody leaves."""
        for visitor in self.visitors:
            await visitor.context.close()

    def expect_quiet(self) -> None:
        """Nothing went wrong in any browser, and nothing was asked of anybody else."""
        for visitor in self.visitors:
            if not visitor.loud:
                assert visitor.wrong == [], visitor.wrong
                elsewhere = [url for url in visitor.asked if origin_of(url) not in self.origins]
                assert elsewhere == [], elsewhere


class World:
    """What places share: a browser, a provider, and the door that it sends people back to."""

    def __init__(self, browser: Browser, provider: RealProvider, door: socket.socket) -> None:
        self.browser = browser
        self.provider = provider
        self.door = door
        self.url = url_of(door)

    @asynccontextmanager
    async def place(
        self, folder: Path, settings: Settings | None = None, *, clock: Clock | None = None, **more: Any
    ) -> AsyncIterator[Place]:
        """A place to which people come by way of the provider, unless the settings name another."""
        await self._forget()
        given = settings or self.provider.settings(**more)
        async with serving(folder / "data", given, clock=clock, listening=self.door) as served:
            place = Place(served, self.provider, self.browser, self.url, given.oidc_issuer or self.url)
            try:
                yield place
            finally:
                await place.close()

    async def _forget(self) -> None:
        """The provider knows those whom it began with, as they were."""
        for login in list(self.provider.accounts):
            await self.provider.remove_account(login)
        for login, claims in ACCOUNTS.items():
            await self.provider.put_account(login, **claims)


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    """A provider and a browser that run."""
    async with AsyncExitStack() as stack:
        door = stack.enter_context(listen("127.0.0.1", 0))
        provider = await stack.enter_async_context(real_provider(f"{url_of(door)}/auth/callback"))
        driver = await stack.enter_async_context(playwright())
        arguments = [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else list(ARGUMENTS)
        browser = await driver.chromium.launch(executable_path=browser_program(), args=arguments)
        stack.push_async_callback(browser.close)
        yield World(browser, provider, door)


def url_of(door: socket.socket) -> str:
    """The server, as people know it."""
    return f"http://localhost:{door.getsockname()[1]}"


def origin_of(url: str) -> str:
    """Whom a browser asks."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
