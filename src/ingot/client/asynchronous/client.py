"""The client: one object for all that a program asks of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack, overload

import msgspec

from ingot.client.asynchronous.admin import AsyncAdmin
from ingot.client.asynchronous.blobs import AsyncBlobs
from ingot.client.asynchronous.events import follow
from ingot.client.asynchronous.files import file_url, send_payloads, submit_one, submit_with_files
from ingot.client.asynchronous.http import PAGE_ROWS, AsyncHttp
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.asynchronous.records import AsyncRecords
from ingot.client.asynchronous.submission import AsyncSubmission, enqueue, publish
from ingot.client.orders import Order, is_large, json_of, named_files, order_body, priority_of
from ingot.client.outgoing import Progress, Sendable
from ingot.client.paths import at
from ingot.client.patience import Patience
from ingot.client.place import find_place
from ingot.client.transaction import HasCursor
from ingot.events.model import Event
from ingot.identity.secret_values import Secret
from ingot.jobs.actions import Acted
from ingot.jobs.crew import Worker
from ingot.jobs.files import JobFile
from ingot.jobs.model import (
    Attempt,
    Batch,
    Definition,
    Enqueued,
    Explanation,
    Job,
    JobLog,
    JobStatus,
    Pause,
    Source,
    Summary,
)
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import URL_SECONDS_MAX
from ingot.wire.people import Me

ORDERS_PER_CALL = 500
CONNECTION_HINT = "Store them first with client.blobs.put, and name them with `inputs`."


class _Made(msgspec.Struct, frozen=True):
    jobs: list[Enqueued]


class _Published(msgspec.Struct, frozen=True):
    id: str


class AsyncClient:
    """A server, as programs see it. Use it in `async with`, or close it at the end.

    What is not given is read from `INGOT_SERVER_URL`, `INGOT_TOKEN` and `INGOT_TENANT`; on the machine of the server
    its own token is found. A request is sent again for up to `patience` seconds, when that can do no harm.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        patience: float = 30.0,
    ) -> None:
        self._http = AsyncHttp(find_place(url, token=token, tenant=tenant, later=True), Patience(seconds=patience))
        self.admin = AsyncAdmin(self._http)
        self.blobs = AsyncBlobs(self._http)
        self.secrets = AsyncRecords(self._http, "secrets", Secret)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()

    # -- asking for work ------------------------------------------------------------------------------------

    @overload
    async def submit(
        self,
        type: str,
        payload: object = None,
        *,
        file: Sendable | Mapping[str, Sendable] | None = None,
        progress: Progress | None = None,
        hashing: Progress | None = None,
        connection: None = None,
        **order: Unpack[Order],
    ) -> AsyncJob: ...

    @overload
    async def submit(
        self, type: str, payload: object = None, *, connection: HasCursor, **order: Unpack[Order]
    ) -> AsyncSubmission: ...

    async def submit(
        self,
        type: str,
        payload: object = None,
        *,
        file: Sendable | Mapping[str, Sendable] | None = None,
        progress: Progress | None = None,
        hashing: Progress | None = None,
        connection: HasCursor | None = None,
        **order: Unpack[Order],
    ) -> AsyncJob | AsyncSubmission:
        """Ask for a job. With an `idempotency_key` a lost answer is asked for again, and there is one job.

        A `file` is a path, or several by the names that the job knows them by: they are sent with it, and it is ready
        when the last of them is there. `hashing` and `progress` are called with how many bytes are hashed and sent, and
        of how many; what the server has already is not sent.
        `inputs` names blobs that are there already. A payload over 64 KiB is stored as a blob first.

        Where results of the type are used again, the same work is done once: the job that is there is the answer, with
        `reused`, and files that it has are not sent. With `force` it is done anew.

        With a `connection` to the database in which Ingot lives, the job is part of its transaction, and no server is
        asked.
        """
        body, files = order_body(type, payload, order), named_files(file)
        if connection is not None:
            if files:
                raise InvalidInput("a job that is part of a transaction has no files to send", hint=CONNECTION_HINT)
            (asked,) = await enqueue(connection, [body])
            return AsyncSubmission(self, type, asked)
        text = bytes(body["payload"]) if is_large(body["payload"]) else None
        await send_payloads(self._http, [body])
        if files:
            made, told = await submit_with_files(self._http, body, files, progress, hashing)
        else:
            made, told = await submit_one(self._http, body)
        return AsyncJob(self, made, text, created=told.created, reused=told.reused)

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: None = None, **order: Unpack[Order]
    ) -> list[AsyncJob]: ...

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: HasCursor, **order: Unpack[Order]
    ) -> list[AsyncSubmission]: ...

    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: HasCursor | None = None, **order: Unpack[Order]
    ) -> list[AsyncJob] | list[AsyncSubmission]:
        """Ask for many jobs of one type, some hundreds at a time; of those sent together all are made or none.

        With a `connection` all of them are part of its transaction.
        """
        bodies = [order_body(type, payload, order) for payload in payloads]
        if connection is not None:
            asked: list[AsyncSubmission] = []
            for start in range(0, len(bodies), ORDERS_PER_CALL):
                answers = await enqueue(connection, bodies[start : start + ORDERS_PER_CALL])
                asked += [AsyncSubmission(self, type, one) for one in answers]
            return asked
        return await self._submit(bodies)

    async def submit_orders(self, orders: Iterable[Mapping[str, Any]]) -> list[AsyncJob]:
        """Ask for many jobs, each of which says its `type`, its `payload` and the rest; sent as `submit_many` does."""
        return await self._submit([order_body(**_parts(order)) for order in orders])

    async def _submit(self, bodies: Sequence[dict[str, Any]]) -> list[AsyncJob]:
        made: list[AsyncJob] = []
        for start in range(0, len(bodies), ORDERS_PER_CALL):
            some = list(bodies[start : start + ORDERS_PER_CALL])
            await send_payloads(self._http, some)
            safe = all("idempotency_key" in body for body in some)
            answer = await self._http.ask("POST", "/jobs/batch", _Made, body={"jobs": some}, safe=safe)
            made += [AsyncJob(self, one.job, created=one.created, reused=one.reused) for one in answer.jobs]
        return made

    # -- looking at jobs ------------------------------------------------------------------------------------

    async def job(self, job_id: str) -> AsyncJob:
        """A job by its id."""
        return AsyncJob(self, await self.read(job_id))

    async def read(self, job_id: str, *, wait_seconds: float = 0.0) -> Job:
        """How a job stands; with `wait_seconds` once it is finished, or then."""
        if wait_seconds <= 0:
            return await self._http.ask("GET", at("jobs", job_id), Job)
        query = {"wait_seconds": wait_seconds}
        return await self._http.ask("GET", at("jobs", job_id, "wait"), Job, query=query, wait_seconds=wait_seconds)

    async def jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        type: str | None = None,
        tag: str | None = None,
        source: Source | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """The jobs that fit every filter, newest first; all of them, or `limit`."""
        query = {
            "status": status,
            "type": type,
            "tag": tag,
            "source": source,
            "created_after": created_after,
            "created_before": created_before,
        }
        async for one in self._http.pages("/jobs", Page[Job], query=query, limit=limit):
            yield AsyncJob(self, one)

    async def summary(self, **filters: Any) -> Summary:
        """The jobs that fit every filter, in numbers."""
        return await self._http.ask("GET", "/jobs/summary", Summary, query=filters)

    async def attempts(self, job_id: str) -> list[Attempt]:
        """The attempts of a job, oldest first."""
        return (await self._http.ask("GET", at("jobs", job_id, "attempts"), Page[Attempt])).items

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is not running."""
        return await self._http.ask("GET", at("jobs", job_id, "explain"), Explanation)

    async def log(self, job_id: str, *, attempt: int | None = None, after: int = 0) -> JobLog:
        """What an attempt has written, the newest unless told."""
        query = {"attempt": attempt, "after": after}
        return await self._http.ask("GET", at("jobs", job_id, "log"), JobLog, query=query)

    async def whole_log(self, job_id: str, *, attempt: int | None = None) -> JobLog:
        """The same, with its beginning where that is kept: it is when an attempt that wrote much has ended."""
        log = await self.log(job_id, attempt=attempt)
        if log.start == 0:
            return log
        name = str(log.attempt)
        for file in await self.files(job_id):
            if (file.kind, file.name) == ("log", name):
                text = (await self.blobs.load(file.blob_id)).decode(errors="replace")
                return msgspec.structs.replace(log, start=0, to=len(text), text=text)
        return log

    async def files(self, job_id: str) -> list[JobFile]:
        """The files of a job: inputs, outputs, logs that are long, and checkpoints."""
        return (await self._http.ask("GET", at("jobs", job_id, "files"), Page[JobFile])).items

    async def file_url(self, file: JobFile, *, seconds: int = URL_SECONDS_MAX) -> str:
        """An address at which a file can be read without a credential, for so long."""
        return await file_url(self._http, file, seconds=seconds)

    async def follow_log(self, job_id: str) -> AsyncIterator[JobLog]:
        """What a job writes, as it does, until it is finished."""
        async for told in follow(self._http, at("jobs", job_id, "log"), {}):
            yield msgspec.json.decode(told.data, type=JobLog)

    async def batch(self, name: str) -> Batch:
        """The jobs enqueued under one name, in numbers."""
        return await self._http.ask("GET", at("batches", name), Batch)

    async def definitions(self) -> list[Definition]:
        """The definitions that the tenant can see."""
        return (await self._http.ask("GET", "/definitions", Page[Definition])).items

    # -- steering jobs --------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> Job:
        """Stop a waiting job at once, ask a running one to stop."""
        return await self._http.ask("POST", at("jobs", job_id, "cancel"), Job, body={}, safe=True)

    async def retry(
        self,
        job_id: str,
        *,
        reset_attempts: bool = False,
        priority: int | str | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
    ) -> Job:
        """Run a finished job again."""
        body = {"reset_attempts": reset_attempts, **_given(priority=priority, max_attempts=max_attempts, run_at=run_at)}
        return await self._http.ask("POST", at("jobs", job_id, "retry"), Job, body=body)

    async def change(
        self,
        job_id: str,
        *,
        priority: int | str | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
    ) -> Job:
        """Change a waiting job, or the tags of any."""
        body = _given(priority=priority, run_at=run_at, max_attempts=max_attempts, tags=tags)
        return await self._http.ask("PATCH", at("jobs", job_id), Job, body=body, safe=True)

    async def act(self, action: str, *, dry_run: bool = False, **said: Any) -> Acted:
        """Cancel, retry or change the jobs that fit a filter, one step: go on with the `cursor` of the answer."""
        body = {"action": action, "dry_run": dry_run, **said}
        return await self._http.ask("POST", "/jobs/actions", Acted, body=body, safe=dry_run)

    async def pauses(self) -> list[Pause]:
        """The types that are paused."""
        return (await self._http.ask("GET", "/pauses", Page[Pause])).items

    async def pause(self, type: str) -> Pause:
        """Hand out no more jobs of a type."""
        return await self._http.ask("PUT", at("pauses", type), Pause, body={}, safe=True)

    async def resume(self, type: str) -> None:
        """Hand out jobs of a type again."""
        await self._http.ask("DELETE", at("pauses", type), bytes, safe=True)

    # -- events and workers ---------------------------------------------------------------------------------

    async def publish(
        self, name: str, data: object = None, *, dedupe_key: str | None = None, connection: HasCursor | None = None
    ) -> str:
        """Append an event of your own; answers its id. With a `connection` it is part of its transaction."""
        if connection is not None:
            return await publish(connection, name, json_of(data, what="data"), dedupe_key)
        body = {"name": name, "data": json_of(data, what="data"), **_given(dedupe_key=dedupe_key)}
        made = await self._http.ask("POST", "/events", _Published, body=body, safe=dedupe_key is not None)
        return made.id

    async def events(self, *, name: str | None = None, after: str | None = None) -> AsyncIterator[Event]:
        """Events as they happen, from now on or behind one; without gap or repeat, over any number of connections."""
        async for told in follow(self._http, "/events/stream", {"name": name, "after": after}):
            if told.id is not None:
                yield msgspec.json.decode(told.data, type=Event)

    async def past_events(self, *, after: str | None = None, limit: int | None = None) -> AsyncIterator[Event]:
        """Events that are kept, oldest first, from the beginning or behind one; all of them, or `limit`."""
        left = limit
        while left is None or left > 0:
            query = {"after": after, "limit": min(PAGE_ROWS, left or PAGE_ROWS)}
            page = await self._http.ask("GET", "/events", Page[Event], query=query)
            for event in page.items:
                yield event
            left = None if left is None else left - len(page.items)
            if page.next_cursor == after:
                return
            after = page.next_cursor

    def workers(self, *, shared: bool = False) -> AsyncIterator[Worker]:
        """The workers of the tenant, or those that serve all."""
        return self._http.pages("/workers", Page[Worker], query=_shared(shared))

    async def worker(self, worker_id: str, *, shared: bool = False) -> Worker:
        """One worker as it stands."""
        return await self._http.ask("GET", at("workers", worker_id), Worker, query=_shared(shared))

    async def drain(self, worker_id: str, *, shared: bool = False) -> Worker:
        """Ask a worker to take no more work."""
        path = at("workers", worker_id, "drain")
        return await self._http.ask("POST", path, Worker, query=_shared(shared), body={}, safe=True)

    async def remove_worker(self, worker_id: str, *, shared: bool = False) -> None:
        """Forget a worker. What it holds is given back."""
        await self._http.ask("DELETE", at("workers", worker_id), bytes, query=_shared(shared))

    async def me(self) -> Me:
        """Who asks, and what they may do."""
        return await self._http.ask("GET", "/me", Me)


def _shared(shared: bool) -> dict[str, Any]:
    return {"shared": "true" if shared else None}


def _parts(order: Mapping[str, Any]) -> dict[str, Any]:
    """An order in parts. Raises `InvalidInput`."""
    said = dict(order)
    if not isinstance(type := said.pop("type", None), str):
        raise InvalidInput("a job has no type", hint='Write it as in {"type": "greet", "payload": {"name": "Ada"}}.')
    return {"type": type, "payload": said.pop("payload", None), "order": said}


def _given(**values: Any) -> dict[str, Any]:
    """What is not `None`; a priority by its number."""
    said = {name: value for name, value in values.items() if value is not None}
    if "priority" in said:
        said["priority"] = priority_of(said["priority"])
    return said
