"""A real server on a real socket, with callers of every kind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ingot.events.audit import Act
from ingot.http.cookies import SESSION_COOKIE
from ingot.http.routes import PREFIX, Route
from ingot.http.server import Server, listen, url_of
from ingot.http.signing import Signer
from ingot.http.tracing import Tracer
from ingot.identity.grants import GRANT_ALL, Grant
from ingot.identity.people import Person, Role
from ingot.kernel.clock import Clock
from ingot.settings import Settings
from ingot.wiring import services
from ingot.wiring.api_server import build_server
from tests.postgres import Database
from tests.sqlite_files import copy_migrated_file

EVERYTHING = [GRANT_ALL]
OWN_PAGE = {"sec-fetch-site": "same-origin"}
ISSUER = "https://id.example"
PEOPLE = Settings(
    oidc_issuer=ISSUER,
    oidc_client_id="ingot",
    oidc_redirect_url="http://127.0.0.1/auth/callback",
    oidc_admin_groups=("operators",),
)


class Served:
    """An open store and a server in front of it."""

    def __init__(self, ingot: services.Ingot, server: Server, url: str, operator: str) -> None:
        self.ingot = ingot
        self.server = server
        self.url = url
        self.operator = operator
        self.client = httpx.AsyncClient(base_url=url, timeout=30, verify=False)  # Reading whom to trust takes long.
        self.database: Database | None = None  # When it is on PostgreSQL.

    async def token(self, *grants: Grant, tenant: str | None = None, **options: Any) -> str:
        """A token of the default tenant, or of another."""
        made = await self.ingot.credentials.create_token(
            tenant or self.ingot.default_tenant.id, description="a test", grants=grants or EVERYTHING, **options
        )
        return made.text

    async def call(self, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        """A request with a token, the operator's unless told otherwise. Paths begin behind the prefix."""
        headers = {"authorization": f"Bearer {self.operator if token is None else token}", **more.pop("headers", {})}
        return await self.client.request(
            method, path if path.startswith("/api") else PREFIX + path, headers=headers, **more
        )

    async def sign_in(self, *groups: str, subject: str = "ada", **known: Any) -> dict[str, str]:
        """The headers of a browser in which a person with these groups is signed in, on a page of ours."""
        person = Person(issuer=ISSUER, subject=subject, groups=groups, **known)
        made = await self.ingot.sessions.sign_in(person, user_agent=None, old_secret=None, act=Act())
        return {"cookie": f"{SESSION_COOKIE}={made.secret}", **OWN_PAGE}

    async def link(self) -> dict[str, str]:
        """The headers of a browser in which the operator is signed in with a link."""
        secret = (await self.ingot.sessions.create_link()).secret
        answer = await self.client.post(f"/auth/link?code={secret}", headers=OWN_PAGE)
        return {"cookie": answer.headers["set-cookie"].partition(";")[0], **OWN_PAGE}

    async def give_groups(self, **roles: Role) -> None:
        """Let groups have roles in the default tenant."""
        await self.ingot.tenants.change(self.ingot.default_tenant.id, groups=roles)
        self.ingot.authenticator.invalidate()

    async def make_job(self, **options: Any) -> dict[str, Any]:
        """A job, made over HTTP."""
        answer = await self.call("POST", "/jobs", json={"type": "noop", **options})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def claim(self, **options: Any) -> dict[str, Any]:
        """The next job, claimed over HTTP."""
        answer = await self.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], **options})
        assert answer.status_code == 200, answer.text
        (job,) = answer.json()["jobs"]
        return dict(job)


@asynccontextmanager
async def serving(
    folder: Path,
    settings: Settings | None = None,
    *,
    spans: Tracer | None = None,
    clock: Clock | None = None,
    door: socket.socket | None = None,
    more: Iterable[Route] = (),
    signer: Signer | None = None,
    maintenance: bool = True,
) -> AsyncIterator[Served]:
    """Serve a new store on SQLite, at a door that is open already, or else at a port that is free.

    It has `more` routes, and takes what the signer has signed. With `maintenance=False` no maintenance runs.
    """
    settings = msgspec.structs.replace(settings or Settings(), data=folder)
    if settings.database_url is None:
        copy_migrated_file(folder)
    async with services.open(settings=settings, clock=clock, maintenance=maintenance) as ingot:
        operator = await ingot.credentials.ensure_operator_token(None)
        assert operator is not None
        with listen("127.0.0.1", 0) if door is None else door.dup() as listening:
            server = build_server(ingot, settings, tracer=spans, extra_routes=more, signer=signer)
            running = asyncio.create_task(server.serve(sockets=[listening]))
            served = Served(ingot, server, url_of(listening), operator.text)
            try:
                yield served
            finally:
                await served.client.aclose()
                if not server.should_exit:
                    server.stop()
                await running
