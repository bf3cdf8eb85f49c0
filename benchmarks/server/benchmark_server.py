"""The process of an Ingot server with an additional route that does nothing. It prints its port and tokens as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.queue.adapter import component
from ingot.http.request import Request
from ingot.http.routes import Granted, Route
from ingot.http.server import collect_garbage_less_often, listen, url_of
from ingot.identity.grants import GRANT_ALL
from ingot.settings import RATE_MAX, Settings
from ingot.wiring import api_server, services


class BenchmarkServer(msgspec.Struct, frozen=True):
    """The port of the server, and a token for each of two tenants."""

    port: int
    tokens: list[str]


class NoopRoutes:
    """A route that checks a grant and does nothing."""

    async def noop(self, call: Request) -> dict[str, bool]:
        """Do nothing."""
        return {"ok": True}

    def route(self) -> Route:
        """Return the declaration of the route."""
        return Route(method="GET", path="/noop", handler=self.noop, needs=Granted("jobs.create"), tag="bench")


async def serve(folder: Path) -> None:
    """Serve until SIGTERM."""
    settings = Settings(data=folder, rate_read=RATE_MAX, rate_write=RATE_MAX, rate_wait=RATE_MAX)
    async with services.open(settings=settings) as ingot:
        tenants = [ingot.default_tenant, await ingot.tenants.create("second")]
        tokens = [
            await ingot.credentials.create_token(tenant.id, description="bench", grants=[GRANT_ALL])
            for tenant in tenants
        ]
        with listen("127.0.0.1", 0) as listener:
            server = api_server.build_server(ingot, settings, extra_routes=[NoopRoutes().route()])
            port = int(url_of(listener).rpartition(":")[2])
            print(msgspec.json.encode(BenchmarkServer(port, [token.text for token in tokens])).decode(), flush=True)
            collect_garbage_less_often()
            await server.serve(sockets=[listener])


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(Path(sys.argv[1])))
