"""The certified `oidc-provider` of npm, run by node on a port of this machine."""

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
    """A provider that runs, and who has an account there. Without a `client_secret` its client is a public one."""

    def __init__(self, process: Process, issuer: str, client_secret: str | None, redirect_urls: Sequence[str]) -> None:
        self._process = process
        self.issuer = issuer
        self.client_id = CLIENT_ID
        self.client_secret = client_secret
        self.redirect_urls = redirect_urls
        self.accounts: dict[str, dict[str, Any]] = {}

    def settings(self, **more: Any) -> Settings:
        """Settings of a server that has its people from here."""
        return Settings(
            oidc_issuer=self.issuer,
            oidc_client_id=self.client_id,
            oidc_client_secret=self.client_secret,
            oidc_redirect_url=self.redirect_urls[0],
            **more,
        )

    async def put_account(self, login: str, **claims: Any) -> None:
        """From now on there is such a person, or one who is changed so."""
        self.accounts[login] = {**self.accounts.get(login, {}), **claims}
        await _tell(self._process, {"account": login, "claims": self.accounts[login]})

    async def remove_account(self, login: str) -> None:
        """From now on there is no such person."""
        del self.accounts[login]
        await _tell(self._process, {"account": login, "claims": None})

    async def sign_in(self, url: str, login: str, client: httpx.AsyncClient | None = None) -> dict[str, str]:
        """Go to where a server sends people, sign in, and answer what the provider sends back with them.

        With a client that has been here before, nothing is to be filled in.
        """
        if client is None:
            async with httpx.AsyncClient(verify=False) as new:
                return await self.sign_in(url, login, new)
        answer = await client.get(url)
        for _ in range(HOPS_MAX):
            if answer.is_redirect:
                url = urljoin(str(answer.url), answer.headers["location"])
                if url.startswith(tuple(f"{known}?" for known in self.redirect_urls)):
                    return dict(parse_qsl(urlsplit(url).query))
                answer = await client.get(url)
            else:
                assert answer.status_code == 200, answer.text
                assert 'name="login"' in answer.text, answer.text
                answer = await client.post(answer.url, data={"login": login})
        raise AssertionError(f"still at {answer.url} after {HOPS_MAX} hops")


async def _tell(process: Process, told: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(told).encode() + b"\n")
    async with asyncio.timeout(SECONDS_MAX):
        line = await process.stdout.readline()
    assert line, f"the provider ended; run `node {HERE.name}/real.mjs` by hand to see why"
    answer: dict[str, Any] = json.loads(line)
    return answer


@asynccontextmanager
async def real_provider(
    *redirect_urls: str,
    client_secret: str | None = CLIENT_SECRET,
    methods: Sequence[str] = (BASIC, POST),
    claims_in_token: bool = False,
) -> AsyncIterator[RealProvider]:
    """A provider that sends people back to one of these addresses, with the accounts of `ACCOUNTS`.

    `methods` are the ways in which a client proves itself, ours by the first. With `claims_in_token` all that is known
    of a person is in the ID token; otherwise userinfo tells it.
    """
    told = {
        "modules": str(await asyncio.to_thread(modules)),
        "redirect_urls": redirect_urls,
        "client_id": CLIENT_ID,
        "client_secret": client_secret,
        "methods": methods,
        "claims_in_token": claims_in_token,
    }
    async with started_async(node(), HERE / "real.mjs", stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        issuer = (await _tell(process, told))["issuer"]
        provider = RealProvider(process, issuer, client_secret, redirect_urls)
        for login, claims in ACCOUNTS.items():
            await provider.put_account(login, **claims)
        yield provider
