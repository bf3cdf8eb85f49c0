"""A real server on a real socket, and requests of every kind of caller."""

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
        self.client = httpx.AsyncClient(base_url=url, timeout=30, verify=False)  # Loading certificates takes long.
        self.database: Database | None = None  # Set if the server runs on PostgreSQL.

    async def token(self, *grants: Grant, tenant: str | None = None, **options: Any) -> str:
        """A token of the default tenant, or of another."""
        created = await self.ingot.credentials.create_token(
            tenant or self.ingot.default_tenant.id, description="a test", grants=grants or EVERYTHING, **options
        )
        return created.text

    async def call(self, method: str, path: str, *, token: str | None = None, **options: Any) -> httpx.Response:
        """Send a request with a token, by default the operator's. Paths may omit the prefix."""
        headers = {"authorization": f"Bearer {self.operator if token is None else token}", **options.pop("headers", {})}
        return await self.client.request(
            method, path if path.startswith("/api") else PREFIX + path, headers=headers, **options
        )

    async def sign_in(self, *groups: str, subject: str = "ada", **profile: Any) -> dict[str, str]:
        """The headers of a browser, on a page of ours, in which a person with these groups is signed in."""
        person = Person(issuer=ISSUER, subject=subject, groups=groups, **profile)
        session = await self.ingot.sessions.sign_in(person, user_agent=None, old_secret=None, act=Act())
        return {"cookie": f"{SESSION_COOKIE}={session.secret}", **OWN_PAGE}

    async def link(self) -> dict[str, str]:
        """The headers of a browser in which the operator is signed in with a link."""
        secret = (await self.ingot.sessions.create_link()).secret
        response = await self.client.post(f"/auth/link?code={secret}", headers=OWN_PAGE)
        return {"cookie": response.headers["set-cookie"].partition(";")[0], **OWN_PAGE}

    async def give_groups(self, **roles: Role) -> None:
        """Give groups roles in the default tenant."""
        await self.ingot.tenants.change(self.ingot.default_tenant.id, groups=roles)
        self.ingot.authenticator.invalidate()

    async def make_job(self, **options: Any) -> dict[str, Any]:
        """Create a job over HTTP."""
        response = await self.call("POST", "/jobs", json={"type": "noop", **options})
        assert response.status_code == 201, response.text
        job: dict[str, Any] = response.json()
        return job

    async def claim(self, **options: Any) -> dict[str, Any]:
        """Claim the next job over HTTP."""
        response = await self.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], **options})
        assert response.status_code == 200, response.text
        (job,) = response.json()["jobs"]
        return dict(job)


@asynccontextmanager
async def serving(
    folder: Path,
    settings: Settings | None = None,
    *,
    tracer: Tracer | None = None,
    clock: Clock | None = None,
    listening: socket.socket | None = None,
    extra_routes: Iterable[Route] = (),
    signer: Signer | None = None,
    maintenance: bool = True,
) -> AsyncIterator[Served]:
    """Serve a new or existing store on SQLite, on a socket that already listens or else on a free port.

    The signer creates and checks signed URLs. With `maintenance=False` no maintenance runs.
    """
    settings = msgspec.structs.replace(settings or Settings(), data=folder)
    if settings.database_url is None:
        copy_migrated_file(folder)
    async with services.open(settings=settings, clock=clock, maintenance=maintenance) as ingot:
        operator = await ingot.credentials.ensure_operator_token(None)
        with listen("127.0.0.1", 0) if listening is None else listening.dup() as server_socket:
            server = build_server(ingot, settings, tracer=tracer, extra_routes=extra_routes, signer=signer)
            running = asyncio.create_task(server.serve(sockets=[server_socket]))
            served = Served(ingot, server, url_of(server_socket), "" if operator is None else operator.text)
            try:
                yield served
            finally:
                await served.client.aclose()
                if not server.should_exit:
                    server.stop()
                await running
