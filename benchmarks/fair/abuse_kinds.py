"""The kinds of abuse by one tenant. Each uses few connections and bodies that are built in advance.

The process that sends them is limited in its CPU time (`abuser.py`), because it shares the machine with the server that
it is to slow down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from benchmarks.fair.raw_client import Connection, Counts, Pace, request

JOB: Final = {"type": "abuse", "delay_seconds": 3600}
TAGGED_JOBS: Final = 20_000
ATTEMPTS: Final = 500
CONNECTIONS: Final = 8
HELD_CONNECTIONS: Final = 500
SLOW_CONNECTIONS: Final = 16
SLOW_BODY_BYTES: Final = 60 * 1024 * 1024
SLOW_FIRST_BYTES: Final = 4 * 1024 * 1024
FLOOR_REQUESTS_PER_SECOND: Final = 900  # The default limit of one caller is 1,000 requests that read.
REFUSED_PAUSE_SECONDS: Final = 0.2  # Before a held connection tries again.
RESULT: Final = "x" * 60_000
TYPES_OF_LISTS: Final = 500


class Abuser:
    """The state of one run: the server, the credential, what was prepared, and what was counted."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self.counts = Counts()
        self.pace = Pace()
        self.jobs: list[dict[str, Any]] = []
        self.next = 0

    def number(self) -> int:
        self.next += 1
        return self.next

    def build(self, method: str, path: str, body: Any = None) -> bytes:
        return request(method, path, self.token, b"" if body is None else json.dumps(body).encode())

    async def connect(self) -> Connection:
        return await Connection.open(self.port)

    async def repeat(self, connections: int, turn: Callable[[Connection], Awaitable[None]]) -> None:
        """Repeat a turn on each of some connections, and connect again if the server closes one."""

        async def one() -> None:
            while True:
                with suppress(OSError, EOFError, asyncio.IncompleteReadError):
                    connection = await self.connect()
                    try:
                        while True:
                            await turn(connection)
                            await self.pace.wait()
                    finally:
                        connection.close()
                self.counts.closed += 1
                await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def send(self, connection: Connection, message: bytes) -> bytes:
        """Send a request, count the status of its response, and return its body."""
        status, body = await connection.exchange(message)
        self.counts.add(status)
        return body

    async def prepare(self, method: str, path: str, body: Any) -> Any:
        """Send a request that is not counted, and return the JSON of its response."""
        connection = await self.connect()
        try:
            status, content = await connection.exchange(self.build(method, path, body))
            if status >= 300:
                raise SystemExit(f"benchmark: {method} {path}: {status} {content[:300]!r}")
            return json.loads(content) if content else None
        finally:
            connection.close()


# -- what each kind prepares ------------------------------------------------------------------------------------------


async def nothing(abuser: Abuser) -> None:
    """Prepare nothing."""


async def waiting_jobs(abuser: Abuser) -> None:
    """Create jobs of many types and tags that wait."""
    for start in range(0, TAGGED_JOBS, 1000):
        jobs = [
            {**JOB, "type": f"abuse-{n % TYPES_OF_LISTS}", "tags": [f"tag-{n % 7}"]} for n in range(start, start + 1000)
        ]
        await abuser.prepare("POST", "/api/v1/jobs/batch", {"jobs": jobs})


async def running_jobs(abuser: Abuser) -> None:
    """Create and claim jobs."""
    await abuser.prepare("POST", "/api/v1/jobs/batch", {"jobs": [{"type": "abuse"}] * ATTEMPTS})
    claim = {"types": ["abuse"], "limit": ATTEMPTS, "worker_id": "abuser"}
    await abuser.prepare("POST", "/api/v1/workers", {"id": "abuser", "types": ["abuse"]})
    abuser.jobs = (await abuser.prepare("POST", "/api/v1/jobs/claim", claim))["jobs"]


async def delayed_jobs(abuser: Abuser) -> None:
    """Create jobs to cancel and retry."""
    created = await abuser.prepare("POST", "/api/v1/jobs/batch", {"jobs": [JOB] * ATTEMPTS})
    abuser.jobs = [entry["job"] for entry in created["jobs"]]


# -- what each kind does ----------------------------------------------------------------------------------------------


async def many_types(abuser: Abuser) -> None:
    """Batches of 1,000 jobs, each of a new type."""
    template = json.dumps({"jobs": [{**JOB, "type": f"abuse-@@@@@@-{n}"} for n in range(1000)]}).encode()

    async def turn(connection: Connection) -> None:
        body = template.replace(b"@@@@@@", b"%06d" % abuser.number())
        await abuser.send(connection, request("POST", "/api/v1/jobs/batch", abuser.token, body))

    await abuser.repeat(CONNECTIONS // 2, turn)


async def huge_batches(abuser: Abuser) -> None:
    """Batches of 10,000 jobs."""
    message = abuser.build("POST", "/api/v1/jobs/batch", {"jobs": [JOB] * 10_000})
    await abuser.repeat(CONNECTIONS // 2, lambda connection: _send(abuser, connection, message))


async def slow_bodies(abuser: Abuser) -> None:
    """Bodies of 60 MiB of which 4 MiB arrive at once and the rest drips."""
    head = request("POST", "/api/v1/jobs/batch", abuser.token, b"", length=SLOW_BODY_BYTES)
    first, drip = b" " * SLOW_FIRST_BYTES, b" " * 1024

    async def turn(connection: Connection) -> None:
        with abuser.counts.holding():
            status = await connection.drip(head, first, drip)
        abuser.counts.add(status)
        raise EOFError

    await abuser.repeat(SLOW_CONNECTIONS, turn)


async def endless_lists(abuser: Abuser) -> None:
    """Lists of all jobs, 1,000 at a time, page after page."""

    async def turn(connection: Connection) -> None:
        cursor = ""
        while True:
            page = await abuser.send(connection, abuser.build("GET", f"/api/v1/jobs?limit=1000{cursor}"))
            await abuser.pace.wait()
            _, _, rest = page[-400:].partition(b'"next_cursor":"')
            if not rest:
                return
            cursor = "&cursor=" + rest.partition(b'"')[0].decode()

    await abuser.repeat(CONNECTIONS, turn)


async def deep_filters(abuser: Abuser) -> None:
    """Lists and counts that combine all filters and find nothing."""
    filters = "tag=tag-3&source=manual&created_after=2020-01-01T00:00:00Z&created_before=2099-01-01T00:00:00Z"
    paths = [
        f"/api/v1/jobs?limit=1000&status=dead&{filters}",
        f"/api/v1/jobs?limit=1000&type=abuse-3&{filters}",
        f"/api/v1/jobs/summary?{filters}",
        f"/api/v1/jobs/summary?status=queued&type=abuse-3&{filters}",
    ]
    messages = [abuser.build("GET", path) for path in paths]

    async def turn(connection: Connection) -> None:
        await abuser.send(connection, messages[abuser.number() % len(messages)])

    await abuser.repeat(CONNECTIONS, turn)


async def heartbeats(abuser: Abuser) -> None:
    """Heartbeats of a worker for 500 jobs, and of single jobs with progress and a log."""
    beats = [{"id": job["id"], "fence": job["fence"], "progress": {"percent": 1}} for job in abuser.jobs]
    messages = [abuser.build("POST", "/api/v1/workers/abuser/heartbeat", {"jobs": beats})]
    for job in abuser.jobs[:4]:
        body = {"fence": job["fence"], "progress": {"percent": 2}, "log": "x" * 1000}
        messages.append(abuser.build("POST", f"/api/v1/jobs/{job['id']}/heartbeat", body))

    async def turn(connection: Connection) -> None:
        await abuser.send(connection, messages[abuser.number() % len(messages)])

    await abuser.repeat(CONNECTIONS, turn)


async def waiting_claims(abuser: Abuser) -> None:
    """Claims that wait, each for another type."""

    async def turn(connection: Connection) -> None:
        body = {"types": [f"never-{abuser.number()}"], "wait_seconds": 20, "worker_id": "abuser"}
        with abuser.counts.holding():
            await abuser.send(connection, abuser.build("POST", "/api/v1/jobs/claim", body))
        await asyncio.sleep(REFUSED_PAUSE_SECONDS)

    await abuser.repeat(HELD_CONNECTIONS, turn)


async def open_uploads(abuser: Abuser) -> None:
    """Uploads that are begun and never sent."""

    async def turn(connection: Connection) -> None:
        body = {"size": 1_000_000, "key": f"abuse/{abuser.number()}"}
        await abuser.send(connection, abuser.build("POST", "/api/v1/blobs/uploads", body))

    await abuser.repeat(CONNECTIONS, turn)


async def streams(abuser: Abuser) -> None:
    """Streams of all events, while jobs are created that cause events."""
    message = abuser.build("GET", "/api/v1/events/stream")
    events = abuser.build("POST", "/api/v1/jobs/batch", {"jobs": [JOB] * 20})

    async def follow(connection: Connection) -> None:
        await connection.follow(message, abuser.counts)
        await asyncio.sleep(REFUSED_PAUSE_SECONDS)

    async def publish(connection: Connection) -> None:
        await abuser.send(connection, events)
        await asyncio.sleep(0.1)

    await asyncio.gather(abuser.repeat(HELD_CONNECTIONS, follow), abuser.repeat(1, publish))


async def big_results(abuser: Abuser) -> None:
    """Jobs with results of 60,000 characters that are read again in lists."""
    create = abuser.build("POST", "/api/v1/jobs/batch", {"jobs": [{"type": "big"}] * 20})
    claim = abuser.build("POST", "/api/v1/jobs/claim", {"types": ["big"], "limit": 20, "worker_id": "abuser"})
    read = abuser.build("GET", "/api/v1/jobs?type=big&limit=100")

    async def turn(connection: Connection) -> None:
        await abuser.send(connection, create)
        claimed = await abuser.send(connection, claim)
        jobs = json.loads(claimed).get("jobs", []) if claimed else []
        settles = [{"outcome": "succeeded", "id": job["id"], "fence": job["fence"], "result": RESULT} for job in jobs]
        if settles:
            await abuser.send(connection, abuser.build("POST", "/api/v1/jobs/settle", {"jobs": settles}))
        await abuser.send(connection, read)

    await abuser.repeat(CONNECTIONS // 2, turn)


async def retries(abuser: Abuser) -> None:
    """Jobs that are canceled and retried, again and again."""

    async def turn(connection: Connection) -> None:
        job = abuser.jobs[abuser.number() % len(abuser.jobs)]["id"]
        await abuser.send(connection, abuser.build("POST", f"/api/v1/jobs/{job}/cancel"))
        await abuser.send(connection, abuser.build("POST", f"/api/v1/jobs/{job}/retry", {"reset_attempts": True}))

    await abuser.repeat(CONNECTIONS, turn)


async def cancels(abuser: Abuser) -> None:
    """Batches of 1,000 jobs that are canceled at once."""
    create = abuser.build("POST", "/api/v1/jobs/batch", {"jobs": [{**JOB, "type": "doomed"}] * 1000})
    cancel = abuser.build(
        "POST",
        "/api/v1/jobs/actions",
        {"action": "cancel", "filter": {"type": "doomed", "status": "queued"}, "limit": 1000},
    )

    async def turn(connection: Connection) -> None:
        await abuser.send(connection, create)
        await abuser.send(connection, cancel)

    await abuser.repeat(CONNECTIONS // 2, turn)


async def small_requests(abuser: Abuser) -> None:
    """As many cheap requests as the server permits one caller: no abuse, and the floor of what any tenant costs."""
    message = abuser.build("GET", "/api/v1/me")

    async def turn(connection: Connection) -> None:
        await abuser.send(connection, message)
        await asyncio.sleep(CONNECTIONS / FLOOR_REQUESTS_PER_SECOND)

    await abuser.repeat(CONNECTIONS, turn)


async def _send(abuser: Abuser, connection: Connection, message: bytes) -> None:
    await abuser.send(connection, message)


Step = Callable[[Abuser], Coroutine[Any, Any, None]]
FLOOR: Final = f"floor: {FLOOR_REQUESTS_PER_SECOND} small requests/s"
KINDS: Final[dict[str, tuple[Step, Step]]] = {
    "many types": (nothing, many_types),
    "huge batches": (nothing, huge_batches),
    "slow bodies": (nothing, slow_bodies),
    "endless lists": (waiting_jobs, endless_lists),
    "deep filters": (waiting_jobs, deep_filters),
    "heartbeats": (running_jobs, heartbeats),
    "waiting claims": (nothing, waiting_claims),
    "open uploads": (nothing, open_uploads),
    "SSE streams": (nothing, streams),
    "big results": (nothing, big_results),
    "retries": (delayed_jobs, retries),
    "cancels": (nothing, cancels),
    FLOOR: (nothing, small_requests),
}
