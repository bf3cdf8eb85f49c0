"""The process that serves: Ingot with one more route that does nothing. Prints where, and its tokens, as JSON."""

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
    """Where it is, and a token for each of two tenants."""

    port: int
    tokens: list[str]


class NoopRoutes:
    """A route that does nothing for a caller who may."""

    async def noop(self, call: Request) -> dict[str, bool]:
        """Nothing."""
        return {"ok": True}

    def route(self) -> Route:
        """Its declaration."""
        return Route(method="GET", path="/noop", handler=self.noop, needs=Granted("jobs.create"), tag="bench")


async def serve(folder: Path) -> None:
    """Serve until TERM."""
    settings = Settings(data=folder, rate_read=RATE_MAX, rate_write=RATE_MAX, rate_wait=RATE_MAX)
    async with services.open(settings=settings) as ingot:
        tenants = [ingot.default_tenant, await ingot.tenants.create("second")]
        made = [
            await ingot.credentials.create_token(one.id, description="bench", grants=[GRANT_ALL]) for one in tenants
        ]
        with listen("127.0.0.1", 0) as listening:
            server = api_server.build_server(ingot, settings, extra_routes=[NoopRoutes().route()])
            port = int(url_of(listening).rpartition(":")[2])
            print(msgspec.json.encode(BenchmarkServer(port, [one.text for one in made])).decode(), flush=True)
            collect_garbage_less_often()
            await server.serve(sockets=[listening])


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(Path(sys.argv[1])))
