"""A server, a real provider and real browsers, which cannot reach any other host.

The server is `localhost` and the provider `127.0.0.1`, which are different sites for a browser.
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
OTHER_HOST: Final = "ingot.example"  # The name of the server on another machine.
ARGUMENTS: Final = (
    f"--host-resolver-rules=MAP {OTHER_HOST} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
GROUPS: Final[dict[str, Any]] = {"oidc_allowed_groups": ("staff",), "oidc_admin_groups": ("ops",)}
REFUSED: Final = "Failed to load resource: the server responded with a status of 4"


class Visitor:
    """A person with their own browser profile, and the problems that the browser reports."""

    def __init__(self, context: BrowserContext, page: Page, site: Site) -> None:
        self.context = context
        self.page = page
        self.site = site
        self.expects_errors = False  # Whether it opens other sites or causes browser errors.
        self.problems: list[str] = []
        self.requested_urls: list[str] = []
        context.on("console", self._note_console)
        context.on("weberror", self._note_error)
        context.on("request", self._note_request)
        context.on("response", self._note_response)

    async def go(self, path: str) -> Response:
        """Open a page of the server."""
        answer = await self.page.goto(self.site.url + path)
        assert answer is not None
        return answer

    async def fill_in(self, login: str) -> None:
        """Enter an account in the form of the provider."""
        await self.page.get_by_label("Account").fill(login)
        await self.press("Sign in")

    async def press(self, name: str, *, role: Any = "button") -> None:
        """Press a button or a link, and wait for the next page."""
        async with self.page.expect_event("domcontentloaded"):
            await self.page.get_by_role(role, name=name).click()
        await self.page.wait_for_load_state()

    async def sign_in(self, login: str = "bob") -> None:
        """Sign in with the provider, and open the own page."""
        await self.go("/me")
        await self.press("Sign in", role="link")
        await self.fill_in(login)
        assert self.path == "/me", await self.text()

    async def sign_in_as_operator(self) -> None:
        """Sign in with a link, and open the own page."""
        await self.page.goto(await self.site.link())
        await self.press("Sign in")
        assert self.path == "/me", await self.text()

    async def text(self) -> str:
        """Return the visible text of the page."""
        return " ".join((await self.page.locator("body").inner_text()).split())

    async def session_cookie(self) -> str | None:
        """Return the value of the session cookie, if there is one."""
        return next((one["value"] for one in await self.context.cookies() if one["name"] == SESSION_COOKIE), None)

    async def status_of(self, path: str = "/api/v1/me") -> int:
        """Return the status of a request that the current page sends."""
        requested_urls = await self.page.evaluate("path => fetch(path).then(answer => answer.status)", path)
        return int(requested_urls)

    @property
    def path(self) -> str:
        """The path of the current page, or the whole URL if it is not a page of the server."""
        return self.page.url.removeprefix(self.site.url)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.problems.append(f"console: {message.text}")

    def _note_error(self, error: WebError) -> None:
        self.problems.append(f"script: {error.error}")

    def _note_request(self, request: Request) -> None:
        self.requested_urls.append(request.url)

    def _note_response(self, response: Response) -> None:
        if response.status >= 400 and response.request.resource_type not in ("document", "fetch"):
            self.problems.append(f"{response.status}: {response.url}")


class Site:
    """A server with its own store, and its visitors."""

    def __init__(self, served: Served, provider: RealProvider, browser: Browser, url: str, issuer: str) -> None:
        self.served = served
        self.provider = provider
        self.url = url
        self.visitors: list[Visitor] = []
        self.origins = {url, issuer}
        self._browser = browser

    async def visitor(self, **options: Any) -> Visitor:
        """Open a new browser profile."""
        context = await self._browser.new_context(**options)
        context.set_default_timeout(WAIT_MS_MAX)
        visitor = Visitor(context, await context.new_page(), self)
        self.visitors.append(visitor)
        return visitor

    @asynccontextmanager
    async def open_browser_with_page_cache(self) -> AsyncIterator[Visitor]:
        """Open a visitor in another browser, which keeps pages in memory for Back. Playwright switches that off."""
        browser = await self._browser.browser_type.launch(
            executable_path=browser_program(),
            args=browser_arguments(),
            ignore_default_args=["--disable-back-forward-cache"],
        )
        try:
            context = await browser.new_context()
            context.set_default_timeout(WAIT_MS_MAX)
            yield Visitor(context, await context.new_page(), self)
        finally:
            await browser.close()

    async def link(self) -> str:
        """Create a sign-in link of the operator."""
        headers = {"authorization": f"Bearer {self.served.operator}"}
        answer = await self.served.client.post(f"{self.url}/api/v1/admin/links", headers=headers)
        return str(answer.json()["url"])

    async def users(self) -> list[dict[str, Any]]:
        """Return the users that the server knows."""
        found: list[dict[str, Any]] = (await self.served.call("GET", "/admin/users")).json()["items"]
        return found

    async def sessions(self, user: str) -> list[dict[str, Any]]:
        """Return the sessions of a user."""
        found: list[dict[str, Any]] = (await self.served.call("GET", f"/admin/users/{user}/sessions")).json()["items"]
        return found

    async def close(self) -> None:
        """Close all browser profiles."""
        for visitor in self.visitors:
            await visitor.context.close()

    def expect_no_problems(self) -> None:
        """Check that no browser reported a problem or sent a request to another origin."""
        for visitor in self.visitors:
            if not visitor.expects_errors:
                assert visitor.problems == [], visitor.problems
                other_site = [url for url in visitor.requested_urls if origin_of(url) not in self.origins]
                assert other_site == [], other_site


class SharedBrowser:
    """What all sites share: a browser, a provider, and the socket of its redirect URL."""

    def __init__(self, browser: Browser, provider: RealProvider, listening: socket.socket) -> None:
        self.browser = browser
        self.provider = provider
        self.listening = listening
        self.url = url_of(listening)

    @asynccontextmanager
    async def site(
        self, folder: Path, settings: Settings | None = None, *, clock: Clock | None = None, **more: Any
    ) -> AsyncIterator[Site]:
        """Run a site that uses the provider, unless the settings name another."""
        await self._reset_accounts()
        settings = settings or self.provider.settings(**more)
        async with serving(folder / "data", settings, clock=clock, listening=self.listening) as served:
            site = Site(served, self.provider, self.browser, self.url, settings.oidc_issuer or self.url)
            try:
                yield site
            finally:
                await site.close()

    async def _reset_accounts(self) -> None:
        """Reset the accounts of the provider."""
        for login in list(self.provider.accounts):
            await self.provider.remove_account(login)
        for login, claims in ACCOUNTS.items():
            await self.provider.put_account(login, **claims)


@asynccontextmanager
async def open_shared_browser() -> AsyncIterator[SharedBrowser]:
    """Start a provider and a browser."""
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listen("127.0.0.1", 0))
        provider = await stack.enter_async_context(real_provider(f"{url_of(listening)}/auth/callback"))
        driver = await stack.enter_async_context(playwright())
        browser = await driver.chromium.launch(executable_path=browser_program(), args=browser_arguments())
        stack.push_async_callback(browser.close)
        yield SharedBrowser(browser, provider, listening)


def browser_arguments() -> list[str]:
    """Return the arguments of a browser."""
    return [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else list(ARGUMENTS)


def url_of(listening: socket.socket) -> str:
    """Return the URL of the server."""
    return f"http://localhost:{listening.getsockname()[1]}"


def origin_of(url: str) -> str:
    """Return the origin of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
