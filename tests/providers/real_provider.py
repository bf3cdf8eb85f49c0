"""The certified `oidc-provider` of npm, run by Node.js on a local port."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from ingot.settings import Settings
from tests.processes import started_async
from tests.providers.programs import HERE, modules, node
from tests.waiting import SECONDS_MAX

CLIENT_ID: Final = "ingot"
CLIENT_SECRET: Final = "a secret: of 100% & more+"
BASIC: Final = "client_secret_basic"
POST: Final = "client_secret_post"
HOPS_MAX: Final = 10
ACCOUNTS: Final[dict[str, dict[str, Any]]] = {
    "ada": {"email": "ada@example.com", "email_verified": True, "name": "Ada Lovelace", "groups": ["ops", "staff"]},
    "bob": {"email": "bob@example.com", "email_verified": True, "name": "Bob", "groups": ["staff"]},
    "eve": {"email": "eve@example.com", "email_verified": True, "name": "Eve", "groups": ["visitors"]},
}


class RealProvider:
    """A running provider with its accounts. Without a `client_secret`, its client is a public one."""

    def __init__(self, process: Process, issuer: str, client_secret: str | None, redirect_urls: Sequence[str]) -> None:
        self._process = process
        self.issuer = issuer
        self.client_id = CLIENT_ID
        self.client_secret = client_secret
        self.redirect_urls = redirect_urls
        self.accounts: dict[str, dict[str, Any]] = {}

    def settings(self, **more: Any) -> Settings:
        """Return the settings of a server that uses this provider."""
        return Settings(
            oidc_issuer=self.issuer,
            oidc_client_id=self.client_id,
            oidc_client_secret=self.client_secret,
            oidc_redirect_url=self.redirect_urls[0],
            **more,
        )

    async def put_account(self, login: str, **claims: Any) -> None:
        """Create an account, or change its claims."""
        self.accounts[login] = {**self.accounts.get(login, {}), **claims}
        await _send(self._process, {"account": login, "claims": self.accounts[login]})

    async def remove_account(self, login: str) -> None:
        """Remove an account."""
        del self.accounts[login]
        await _send(self._process, {"account": login, "claims": None})

    async def sign_in(self, url: str, login: str, client: httpx.AsyncClient | None = None) -> dict[str, str]:
        """Open the authorization URL, sign in, and return the query of the callback.

        A client that has a session already does not see the form.
        """
        if client is None:
            async with httpx.AsyncClient(verify=False) as new:
                return await self.sign_in(url, login, new)
        response = await client.get(url)
        for _ in range(HOPS_MAX):
            if response.is_redirect:
                url = urljoin(str(response.url), response.headers["location"])
                if url.startswith(tuple(f"{redirect_url}?" for redirect_url in self.redirect_urls)):
                    return dict(parse_qsl(urlsplit(url).query))
                response = await client.get(url)
            else:
                assert response.status_code == 200, response.text
                assert 'name="login"' in response.text, response.text
                response = await client.post(response.url, data={"login": login})
        raise AssertionError(f"still at {response.url} after {HOPS_MAX} hops")


async def _send(process: Process, message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    async with asyncio.timeout(SECONDS_MAX):
        line = await process.stdout.readline()
    assert line, f"the provider ended; run `node {HERE.name}/real.mjs` by hand to see why"
    response: dict[str, Any] = json.loads(line)
    return response


@asynccontextmanager
async def real_provider(
    *redirect_urls: str,
    client_secret: str | None = CLIENT_SECRET,
    methods: Sequence[str] = (BASIC, POST),
    claims_in_token: bool = False,
) -> AsyncIterator[RealProvider]:
    """Run a provider with these redirect URLs and the accounts of `ACCOUNTS`.

    `methods` are the supported client authentication methods, of which our client uses the first. With
    `claims_in_token` the ID token contains all claims; otherwise userinfo returns them.
    """
    message = {
        "modules": str(await asyncio.to_thread(modules)),
        "redirect_urls": redirect_urls,
        "client_id": CLIENT_ID,
        "client_secret": client_secret,
        "methods": methods,
        "claims_in_token": claims_in_token,
    }
    async with started_async(node(), HERE / "real.mjs", stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        issuer = (await _send(process, message))["issuer"]
        provider = RealProvider(process, issuer, client_secret, redirect_urls)
        for login, claims in ACCOUNTS.items():
            await provider.put_account(login, **claims)
        yield provider
