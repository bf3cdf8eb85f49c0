"""A tenant with objects inside a narrow grant, and, in one of the two worlds, with others outside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec
from blake3 import blake3

from ingot.identity.grants import GRANT_ALL, Grant
from tests.http.serving import Served
from tests.http.two_worlds.direct_client import Answer, Call, send

MINE: Final = "mine.print"
OTHER: Final = "other.print"
LOOKALIKE: Final = "mines.print"  # Begins with the same letters as the grant, but is another segment.
EQUAL_BYTES: Final = b"the same bytes inside and outside"
OUTSIDE_BYTES: Final = b"bytes that only the outside has"
MISSING: Final = "01890000-0000-7000-8000-000000000000"
MISSING_BLOB: Final = blake3(b"bytes that nobody has").hexdigest()
WORKER: Final = "inside-worker"
LATER: Final = 3600  # Seconds that do not pass during a test.
UNHURRIED_TYPE: Final = {"max_attempts": 4, "backoff": {"first_seconds": LATER}}
LARGE: Final = 128_000  # Bytes of an upload that is not stored in a row.

JsonObject = dict[str, Any]


class Attempt(msgspec.Struct, frozen=True):
    """A running attempt."""

    id: str
    fence: int


class Outside(msgspec.Struct, kw_only=True):
    """Names of objects outside the grant, which exist in one world only. Requests name them in both."""

    queued: str = ""
    running: Attempt = Attempt("", 1)
    done: str = ""
    blocked: str = ""
    upload: str = ""
    input_upload: str = ""
    output_upload: str = ""
    cursor: str = ""
    token: str = ""
    member: str = ""
    blob: str = blake3(OUTSIDE_BYTES).hexdigest()
    keys: tuple[str, ...] = ("a-first", "mines/a", "other/b", "other/equal", "z-last")


class Inside(msgspec.Struct, kw_only=True):
    """Names of objects inside the grant, which both worlds have."""

    number: int
    queued: list[str]
    delayed: list[str]
    attempts: list[Attempt]
    done: str
    failed: list[str]
    blocked: str
    blob: str
    uploads: dict[str, str]
    event: str
    worker: str
    blob_url: str
    upload_url: str

    @property
    def key(self) -> str:
        return f"mine/{self.number:02}/a"

    @property
    def last_event(self) -> str:
        return f"mine.{self.number:02}.last"

    def jobs(self) -> Iterator[str]:
        """One job of each status."""
        yield from (self.queued[0], self.attempts[0].id, self.done, self.failed[0], self.blocked)


class World:
    """One tenant and its administrator."""

    def __init__(self, served: Served, tenant: str, slug: str, admin: str, *, is_crowded: bool) -> None:
        self.served = served
        self.app = served.server.config.app
        self.tenant = tenant
        self.slug = slug
        self.is_crowded = is_crowded
        self.admin = {"authorization": f"Bearer {admin}"}
        self.names = {tenant: "<tenant>", slug: "<slug>"}
        self._noises = 0
        self._events: list[JsonObject] = []
        self._events_read_to: str | None = None

    async def do(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request as the administrator, which must succeed. Return the JSON of the response."""
        credential = options.pop("credential", self.admin)
        answer = await send(self.app, Call(about="", method=method, path=path, body=body, **options), credential)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body[:500]!r}"
        return answer.json() if answer.body else None

    async def send(self, call: Call, credential: dict[str, str]) -> Answer:
        return await send(self.app, call, credential)

    def learn(self, value: str, name: str) -> str:
        """Remember the name of an ID, by which it is compared with that of the other world."""
        self.names[value] = f"<{name}>"
        return value

    async def credential(self, grants: list[Grant]) -> dict[str, str]:
        """A new token with these grants."""
        created = await self.served.ingot.credentials.create_token(self.tenant, description="narrow", grants=grants)
        self.learn(created.token.id, "caller")
        return {"authorization": f"Bearer {created.text}"}

    async def worker_credential(self, id: str, types: tuple[str, ...]) -> dict[str, str]:
        """A new worker credential for these job types."""
        created = await self.served.ingot.credentials.create_worker_credential(self.tenant, id, types=types)
        return {"x-worker-id": id, "x-worker-secret": created.secret}

    # -- inside ---------------------------------------------------------------------------------------------

    async def make_inside(self, number: int, worker: dict[str, str] | None = None) -> Inside:
        """Create the objects of one caller, and objects outside the grant between them.

        Its attempts belong to the worker with this credential, or without one, to a worker of the administrator.
        """
        name = f"mine.{number:02}"
        blob = (await self.do("PUT", f"/keys/mine/{number:02}/a", b"%d" % number))["blob_id"]
        await self.make_noise()
        await self.do("PUT", f"/keys/mine/{number:02}/b", EQUAL_BYTES)
        await self.do("PUT", f"/keys/mine/{number:02}/c", b"c")
        await self.do("PUT", f"/secrets/{name}", {"value": "inside"})
        await self.do("PUT", f"/admin/definitions/{name}", {"max_attempts": 2})
        await self.do("PUT", f"/pauses/{name}")
        event = await self.do("POST", "/events", {"name": name, "data": number, "dedupe_key": name})
        attempts = [Attempt(job["id"], job["fence"]) for job in await self._start(20, blob, worker)]
        for n, attempt in enumerate(attempts):
            self.learn(attempt.id, f"attempt {n}")
        settled = [attempts.pop() for _ in range(4)]
        await self.do("POST", f"/jobs/{settled[0].id}/complete", {"fence": settled[0].fence, "result": [number]})
        for attempt in settled[1:]:
            await self.do("POST", f"/jobs/{attempt.id}/fail", {"fence": attempt.fence, "error": "x", "retry": False})
        first = attempts[0]
        upload = await self.do("POST", "/blobs/uploads", {"size": LARGE, "payload_of": MINE})
        spare_upload = await self.do("POST", "/blobs/uploads", {"size": LARGE, "key": f"mine/{number:02}/spare"})
        key_upload = await self.do("POST", "/blobs/uploads", {"size": 4, "key": f"mine/{number:02}/upload"})
        output = {"size": 4, "fence": first.fence, "name": "output"}
        output_upload = await self.do("POST", f"/jobs/{first.id}/uploads", output)
        for plan in (key_upload, output_upload):
            await self.do("PUT", _path_of(plan["url"]), b"%04d" % number)
        url = await self.do("GET", f"/blobs/{blob}/url")
        blocked = await self.do("POST", "/jobs", {"type": MINE, "after": [first.id], "inputs": {"f": blob}})
        queued = [await self._enqueue(f"queued {n}") for n in range(3)]
        delayed = [await self._enqueue(f"delayed {n}", delay_seconds=LATER, dedupe_key=None) for n in range(4)]
        await self.make_noise()
        await self.do("POST", "/events", {"name": f"{name}.last"})
        uploads = {"payload": upload, "key": key_upload, "spare": spare_upload, "output": output_upload}
        ids = {kind: self.learn(plan["upload"]["id"], f"{kind} upload") for kind, plan in uploads.items()}
        return Inside(
            number=number,
            queued=queued,
            delayed=delayed,
            attempts=attempts,
            done=settled[0].id,
            failed=[attempt.id for attempt in settled[1:]],
            blocked=self.learn(blocked["id"], "blocked"),
            blob=blob,
            uploads=ids,
            event=event["id"],
            worker=f"inside-{number}" if worker is None else f"{worker['x-worker-id']}/1",
            blob_url=_path_of(url["url"]),
            upload_url=_path_of(upload["url"]),
        )

    async def _enqueue(self, name: str, type: str = MINE, **options: Any) -> str:
        job = await self.do("POST", "/jobs", {"type": type, **options})
        return self.learn(job["id"], name)

    async def _start(self, count: int, blob: str, worker: dict[str, str] | None) -> list[JsonObject]:
        """Create and claim jobs."""
        order = {"type": MINE, "priority": 1, "tags": ["red"], "inputs": {"f": blob}}
        await self.do("POST", "/jobs/batch", {"jobs": [order] * count})
        claim = {"types": [MINE], "limit": count, **({"worker_id": WORKER} if worker is None else {})}
        claimed = await self.do("POST", "/jobs/claim", claim, credential=worker or self.admin)
        jobs: list[JsonObject] = claimed["jobs"]
        assert len(jobs) == count
        return jobs

    # -- outside --------------------------------------------------------------------------------------------

    async def make_noise(self) -> None:
        """Create objects outside the grant, if this is the world that has them."""
        if not self.is_crowded:
            return
        await self._enqueue("noise", OTHER, tags=["red"], batch="noise", priority=1)
        await self._enqueue("noise", LOOKALIKE, tags=["red"], delay_seconds=60)
        self._noises += 1
        name = f"mine-{self._noises:02}"  # Another segment than `mine`, directly before `mine.` and `mine/`.
        await self.do("PUT", f"/keys/{name}", b"noise")
        await self.do("PUT", f"/secrets/{name}", {"value": "noise"})
        await self.do("PUT", f"/admin/definitions/{name}", {"max_attempts": 9})
        await self.do("PUT", f"/pauses/{name}")
        await self.do("POST", "/events", {"name": "other.noise"})

    async def make_outside(self) -> Outside:
        """Create one object of each kind outside the grant. The other world has none of them."""
        outside = Outside()
        for key in outside.keys:
            await self.do("PUT", f"/keys/{key}", EQUAL_BYTES if key == "other/equal" else OUTSIDE_BYTES)
        blob = outside.blob
        for n in range(3):
            await self._enqueue("crowd", OTHER, tags=["red"], delay_seconds=n)
        done, outside.running = [Attempt(job["id"], job["fence"]) for job in await self._start_outside(blob)]
        await self.do("POST", f"/jobs/{done.id}/complete", {"fence": done.fence, "result": "outside"})
        outside.done = self.learn(done.id, "outside done")
        running = {"fence": outside.running.fence, "size": LARGE}
        begun = await self.do("POST", f"/jobs/{outside.running.id}/uploads", {**running, "name": "f"})
        outside.output_upload = begun["upload"]["id"]
        log = {"fence": outside.running.fence, "log": "outside", "log_offset": 0, "progress": {"percent": 50}}
        await self.do("POST", f"/jobs/{outside.running.id}/heartbeat", log)
        keys = {"idempotency_key": "outside", "dedupe_key": "outside", "batch": "outside", "tags": ["red"]}
        outside.queued = await self._enqueue("outside queued", OTHER, **keys, inputs={"f": blob}, payload_blob=blob)
        outside.blocked = await self._enqueue("outside blocked", OTHER, after=[outside.queued])
        upload = await self.do("POST", "/blobs/uploads", {"size": LARGE, "key": "other/upload"})
        outside.upload = upload["upload"]["id"]
        sent = {"name": "f", "size": LARGE, "blob_id": MISSING_BLOB}
        waiting = await self.do("POST", "/jobs", {"type": OTHER, "uploads": [sent]})
        outside.input_upload = waiting["uploads"][0]["upload"]["id"]
        await self._make_outside_names()
        token = await self.do("POST", "/admin/tokens", {"description": "outside", "grants": [{"action": "*"}]})
        outside.token = token["id"]
        member = await self.do("POST", "/admin/members", {"role": "viewer", "email": "outside@example.com"})
        outside.member = member["id"]
        return outside

    async def _start_outside(self, blob: str) -> list[JsonObject]:
        await self.do("POST", "/jobs/batch", {"jobs": [{"type": OTHER, "priority": 1, "inputs": {"f": blob}}] * 2})
        body = {"types": [OTHER], "limit": 2, "worker_id": "outside-worker"}
        jobs: list[JsonObject] = (await self.do("POST", "/jobs/claim", body))["jobs"]
        return jobs

    async def _make_outside_names(self) -> None:
        for name in ("other", "mines.a", "mine-a"):
            await self.do("PUT", f"/secrets/{name}", {"value": "outside"})
            await self.do("PUT", f"/admin/definitions/{name}", {"max_attempts": 7})
            await self.do("PUT", f"/pauses/{name}")
        for name in ("other.happened", "mines.happened", "other.happened"):
            await self.do("POST", "/events", {"name": name, "data": "outside"})
        await self.do("POST", "/events", {"name": "other.once", "dedupe_key": "outside"})
        await self.do("POST", "/workers", {"id": "outside-worker", "types": [OTHER]})
        await self.do("POST", "/workers", {"id": "outside-second", "types": [OTHER]})
        await self.worker_credential("outside-press", (OTHER,))

    # -- what must not change -------------------------------------------------------------------------------

    async def outside_state(self, outside: Outside) -> dict[str, Any]:
        """Everything outside the grant, as the administrator sees it."""
        state: dict[str, Any] = {}
        lists = {
            "/jobs": "type",
            "/keys": "key",
            "/secrets": "name",
            "/admin/definitions": "type",
            "/pauses": "type",
            "/workers": "id",
            "/admin/members": "id",
            "/admin/workers": "id",
        }
        for path, field in lists.items():
            state[path] = [_settled(item) async for item in self._list(path) if not _is_inside(item[field])]
        state["/events"] = await self._outside_events()
        token = await self.do("GET", f"/admin/tokens/{outside.token}") if self.is_crowded else None
        state["token"] = token and (token["grants"], token["revoked_at"])
        if self.is_crowded:
            for job in (outside.queued, outside.running.id, outside.done, outside.blocked):
                for part in ("attempts", "files", "log"):
                    state[f"{job} {part}"] = await self.do("GET", f"/jobs/{job}/{part}")
            references = (await self.do("GET", f"/blobs/{outside.blob}/references"))["references"]
            state["references"] = [reference for reference in references if _is_outside_reference(reference)]
            for upload in (outside.upload, outside.input_upload):
                state[upload] = (await self.do("GET", f"/blobs/uploads/{upload}"))["upload"]
        return state

    async def _list(self, path: str) -> AsyncIterator[JsonObject]:
        query = {} if path in ("/admin/definitions", "/pauses") else {"limit": "1000"}
        while True:
            page = await self.do("GET", path, query=query)
            for item in page["items"]:
                yield item
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    async def _outside_events(self) -> list[JsonObject]:
        """The events that callers published outside the grant."""
        while True:
            after = {} if self._events_read_to is None else {"after": self._events_read_to}
            page = await self.do("GET", "/events", query={"limit": "1000", **after})
            self._events += [event for event in page["items"] if event["name"].startswith(("other.", "mines."))]
            self._events_read_to = page["next_cursor"]
            if len(page["items"]) < 1000:
                return list(self._events)


def _is_inside(name: str) -> bool:
    return name in ("mine", WORKER) or name.startswith(("mine.", "mine/", "inside-"))


def _is_outside_reference(reference: JsonObject) -> bool:
    """Whether a reference existed before: callers may store the same bytes inside their grant."""
    if reference["kind"] == "key":
        return not _is_inside(reference["name"])
    return bool(reference["kind"] != "upload" and reference["job_type"] != MINE)


def _settled(item: JsonObject) -> JsonObject:
    return {name: value for name, value in item.items() if name not in ("last_used_at", "seen_at", "uptime_seconds")}


def _path_of(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2]


async def make_worlds(served: Served) -> tuple[World, World]:
    """Create a world with only the inside, and one that also has an outside."""
    worlds = []
    for slug in ("south", "north"):
        tenant = await served.ingot.tenants.create(slug)
        admin = await served.ingot.credentials.create_token(tenant.id, description="admin", grants=[GRANT_ALL])
        world = World(served, tenant.id, slug, admin.text, is_crowded=slug == "north")
        world.learn(admin.token.id, "admin")
        await world.do("PUT", f"/admin/definitions/{MINE}", UNHURRIED_TYPE)
        await world.do("POST", "/workers", {"id": WORKER, "types": [MINE]})
        worlds.append(world)
    bare, crowded = worlds
    return bare, crowded
