"""Each pair of a narrow grant and a route: a caller sees and changes nothing outside its grant.

Two tenants have the same objects inside the grant. One of them also has others, with similar names, equal keys and
equal bytes. Every caller sends the same requests to both, which also name objects of the outside. A response that
differs reveals the outside, and an object outside that differs afterwards was changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from ingot.http.routes import Granted, Open, Route, Signed
from ingot.identity.grants import ACTIONS, ANY, Grant, allows
from ingot.settings import Settings
from tests.http.route_table import route_table_of
from tests.http.serving import Served, serving
from tests.http.two_worlds.direct_client import Answer, Call
from tests.http.two_worlds.masking import difference, mask
from tests.http.two_worlds.rows import ROWS
from tests.http.two_worlds.world import MINE, Inside, Outside, World, make_worlds
from tests.postgres import borrowed_database

RESOURCES: Final = {
    "jobs": "jobs/mine",
    "workers": "jobs/mine",
    "events": "events/mine",
    "blobs": "keys/mine",
    "secrets": "secrets/mine",
}
EVERYTHING_OF_MINE: Final = [
    Grant(action=ANY, resource=f"{root}/mine") for root in ("jobs", "events", "keys", "secrets")
]
SENDER_OF_SIGNED_URLS: Final = "everything of mine"
# Narrow callers. Administrative actions get a job type, because only definitions have resources.
GRANTS: Final[dict[str, list[Grant]]] = {
    **{action: [Grant(action=action, resource=RESOURCES.get(action.split(".")[0], "jobs/mine"))]
       for action in sorted(ACTIONS)},
    SENDER_OF_SIGNED_URLS: EVERYTHING_OF_MINE,
}  # fmt: skip
WORKER_CREDENTIAL: Final = "a worker credential for one type"
# Routes that check for a grant for the whole tenant themselves, so that no narrow caller ever gets through.
WHOLE_TENANT: Final = frozenset(
    {
        ("GET", "/api/v1/batches/{batch}"),
        ("GET", "/api/v1/workers"),
        ("GET", "/api/v1/workers/{id}"),
        ("POST", "/api/v1/admin/secrets/rotate-key"),
        ("GET", "/status"),
        # These two only work with a bucket.
        ("POST", "/api/v1/jobs/{id}/uploads/{upload}/parts"),
        ("POST", "/api/v1/blobs/uploads/{id}/parts"),
    }
)
# No limit of rates, and no lease that expires or worker that becomes silent on a slow machine.
UNHURRIED: Final = Settings(rate_read=1e6, rate_write=1e6, rate_wait=1e6, lease_seconds=3600)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    if request.param == "sqlite":
        async with serving(tmp_path / "data", UNHURRIED, maintenance=False) as server:
            yield server
        return
    async with borrowed_database() as database:
        settings = msgspec.structs.replace(UNHURRIED, database_url=database.server_url)
        async with serving(tmp_path / "data", settings, maintenance=False) as server:
            yield server


class Comparison:
    """Sends the requests of narrow callers to both worlds, and collects the differences."""

    def __init__(self, served: Served, bare: World, crowded: World, outside: Outside) -> None:
        self.routes = [route for route in route_table_of(served).routes if not isinstance(route.needs, Open)]
        self.worlds = (bare, crowded)
        self.outside = outside
        self.differences: dict[str, str] = {}
        self.reached: set[tuple[str, str]] = set()
        self.requests = 0

    async def run(self, caller: str, number: int) -> None:
        """Send all requests of one caller."""
        credentials = [await _credential(world, caller) for world in self.worlds]
        workers = credentials if caller == WORKER_CREDENTIAL else (None, None)
        insides = [await world.make_inside(number, worker) for world, worker in zip(self.worlds, workers, strict=True)]
        states = [await world.outside_state(self.outside) for world in self.worlds]
        for route in self.routes:
            if not route.is_page and not _is_skipped(route, caller):
                await self._run_route(caller, route, insides, credentials)
        for world, state in zip(self.worlds, states, strict=True):
            after = await world.outside_state(self.outside)
            for what in state:
                if after[what] != state[what]:
                    self.differences[f"{caller}: changed {what}"] = difference(state[what], after[what])

    async def _run_route(
        self, caller: str, route: Route, insides: list[Inside], credentials: list[dict[str, str]]
    ) -> None:
        build = ROWS[route.method, route.path]
        is_refused = isinstance(route.needs, Granted) and not _is_met(route, caller)
        calls = [list(build(inside, self.outside)) for inside in insides]
        for pair in zip(*calls, strict=True):
            answers = await self._compare(caller, route, pair, credentials)
            if is_refused:  # The route refuses the caller before it reads anything else of the request.
                assert [answer.status for answer in answers] == [403, 403], f"{caller}: {route.method} {route.path}"
                return
            if all(answer.status < 300 for answer in answers):
                self.reached.add((route.method, route.path))

    async def _compare(
        self, caller: str, route: Route, calls: tuple[Call, ...], credentials: list[dict[str, str]]
    ) -> list[Answer]:
        pages = list(calls)
        answers: list[Answer] = []
        for page in range(calls[0].pages):
            answers = [
                await world.send(call, credential)
                for world, call, credential in zip(self.worlds, pages, credentials, strict=True)
            ]
            self.requests += 2
            seen = [mask(answer, world.names) for answer, world in zip(answers, self.worlds, strict=True)]
            if seen[0] != seen[1]:
                name = f"{caller}: {route.method} {route.path}, {calls[0].about}, page {page + 1}"
                self.differences[name] = difference(seen[0], seen[1])
                break
            if page + 1 == calls[0].pages or answers[0].status != 200:
                break
            cursors = [answer.json()["next_cursor"] for answer in answers]
            if None in cursors:
                break
            parameter = "after" if route.path.endswith("/events") else "cursor"
            pages = [
                msgspec.structs.replace(call, query={**call.query, parameter: str(cursor)})
                for call, cursor in zip(calls, cursors, strict=True)
            ]
        return answers


def _is_skipped(route: Route, caller: str) -> bool:
    """Whether a route shows the same to all callers of a tenant, or the credential of the caller covers all of it."""
    if isinstance(route.needs, Signed):  # A signed URL needs no caller, so that one sends them.
        return caller != SENDER_OF_SIGNED_URLS
    return caller == WORKER_CREDENTIAL and isinstance(route.needs, Granted) and route.needs.action == "workers.read"


def _is_met(route: Route, caller: str) -> bool:
    assert isinstance(route.needs, Granted)
    if caller == WORKER_CREDENTIAL:
        return route.needs.is_met(lambda action: action == "workers.run")
    if route.needs.is_tenant_wide:
        return route.needs.is_met(lambda action: allows(GRANTS[caller], action))
    return route.needs.is_met(lambda action: any(grant.covers(action, grant.resource) for grant in GRANTS[caller]))


async def _credential(world: World, caller: str) -> dict[str, str]:
    if caller == WORKER_CREDENTIAL:
        return await world.worker_credential(f"inside-press-{world.slug}", (MINE,))
    return await world.credential(GRANTS[caller])


async def test_a_narrow_grant_neither_reveals_nor_changes_anything_outside_it(served: Served) -> None:
    bare, crowded = await make_worlds(served)
    outside = await crowded.make_outside()
    bare.names = {**crowded.names, **bare.names}  # Requests name objects of the outside in both worlds.
    comparison = Comparison(served, bare, crowded, outside)
    for number, caller in enumerate([*GRANTS, WORKER_CREDENTIAL]):
        await comparison.run(caller, number)
    assert comparison.differences == {}, "\n".join(
        f"{name}\n    {shown}" for name, shown in comparison.differences.items()
    )
    expected = {
        (route.method, route.path)
        for route in comparison.routes
        if isinstance(route.needs, Granted) and not route.needs.is_tenant_wide and not route.is_page
    }
    assert expected - comparison.reached == WHOLE_TENANT, "a row has no request that succeeds, so that it shows nothing"


async def test_a_taken_name_reveals_nothing_else(served: Served) -> None:
    _, crowded = await make_worlds(served)
    outside = await crowded.make_outside()
    caller = await crowded.credential(EVERYTHING_OF_MINE)
    requests = [
        Call(about="job", method="POST", path="/jobs", body={"type": MINE, "dedupe_key": "outside"}),
        Call(about="event", method="POST", path="/events", body={"name": "mine.new", "dedupe_key": "outside"}),
        Call(about="worker", method="POST", path="/workers", body={"id": "outside-worker", "types": [MINE]}),
    ]
    answers = {call.about: await crowded.send(call, caller) for call in requests}
    assert {about: answer.json()["code"] for about, answer in answers.items()} == {
        "job": "duplicate_job",
        "event": "idempotency_mismatch",
        "worker": "forbidden",
    }
    for about, answer in answers.items():
        for secret in (outside.queued, "other.", "admin"):
            assert secret not in answer.body.decode(), f"the answer about a {about} reveals {secret}"


async def test_each_route_has_a_row(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        routes = route_table_of(served).routes
    needed = {(route.method, route.path) for route in routes if not isinstance(route.needs, Open) and not route.is_page}
    assert set(ROWS) == needed, "add a row for each new route to tests/http/two_worlds/rows.py"
