"""The process that serves: Ingot with one more route that does nothing. Prints where, and its tokens, as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.queue.adapter import component
from ingot.http.call import Call
from ingot.http.server import listen, look_for_cycles_less, url_of
from ingot.http.table import Granted, Route
from ingot.identity.grants import ALL
from ingot.settings import RATE_MAX, Settings
from ingot.wiring import rooms, serving


class Site(msgspec.Struct, frozen=True):
    """Where it is, and a token for each of two tenants."""

    port: int
    tokens: list[str]


class Nothing:
    """A route that does nothing for a caller who may."""

    async def noop(self, call: Call) -> dict[str, bool]:
        """Nothing."""
        return {"ok": True}

    def route(self) -> Route:
        """Its declaration."""
        return Route(method="GET", path="/noop", handler=self.noop, needs=Granted("jobs.create"), room="bench")


async def serve(folder: Path) -> None:
    """Serve until TERM."""
    settings = Settings(data=folder, rate_read=RATE_MAX, rate_write=RATE_MAX, rate_wait=RATE_MAX)
    async with rooms.open(settings=settings) as ingot:
        tenants = [ingot.default_tenant, await ingot.tenants.create("second")]
        made = [await ingot.credentials.create_token(one.id, description="bench", grants=[ALL]) for one in tenants]
        with listen("127.0.0.1", 0) as listening:
            server = serving.server_of(ingot, settings, more=[Nothing().route()])
            port = int(url_of(listening).rpartition(":")[2])
            print(msgspec.json.encode(Site(port, [one.text for one in made])).decode(), flush=True)
            look_for_cycles_less()
            await server.serve(sockets=[listening])


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(Path(sys.argv[1])))
