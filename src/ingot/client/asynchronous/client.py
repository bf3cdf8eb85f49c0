"""The client: one object for all that a program asks of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack, overload

import msgspec

from ingot.client.asynchronous.admin import AsyncAdmin
from ingot.client.asynchronous.blobs import AsyncBlobs
from ingot.client.asynchronous.event_stream import follow_stream
from ingot.client.asynchronous.http import ITEMS_PER_PAGE, AsyncHttp
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.asynchronous.job_files import signed_file_url, store_large_payloads, submit_job, submit_with_files
from ingot.client.asynchronous.records import AsyncRecords
from ingot.client.asynchronous.submission import AsyncSubmission, enqueue_in_transaction, publish_in_transaction
from ingot.client.job_request import (
    SubmitOptions,
    encode_json,
    files_by_name,
    is_large_payload,
    job_request_body,
    parse_priority,
)
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address
from ingot.client.transaction import HasCursor
from ingot.client.upload_source import ProgressCallback, Sendable
from ingot.client.url_path import url_path
from ingot.events.model import Event
from ingot.identity.secret_values import Secret
from ingot.jobs.bulk_actions import BulkActionResult
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
from ingot.jobs.worker_model import RegisteredWorker
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import URL_SECONDS_MAX
from ingot.wire.people import Me

JOBS_PER_REQUEST_MAX = 500
FILES_IN_TRANSACTION_HINT = "Store them first with client.blobs.put, and name them with `inputs`."


class _SubmitManyResponse(msgspec.Struct, frozen=True):
    jobs: list[Enqueued]


class _PublishResponse(msgspec.Struct, frozen=True):
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
        self._http = AsyncHttp(
            resolve_server_address(url, token=token, tenant=tenant, allow_missing_token=True),
            RetryPolicy(retry_seconds=patience),
        )
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
        progress: ProgressCallback | None = None,
        hashing: ProgressCallback | None = None,
        connection: None = None,
        **order: Unpack[SubmitOptions],
    ) -> AsyncJob: ...

    @overload
    async def submit(
        self, type: str, payload: object = None, *, connection: HasCursor, **order: Unpack[SubmitOptions]
    ) -> AsyncSubmission: ...

    async def submit(
        self,
        type: str,
        payload: object = None,
        *,
        file: Sendable | Mapping[str, Sendable] | None = None,
        progress: ProgressCallback | None = None,
        hashing: ProgressCallback | None = None,
        connection: HasCursor | None = None,
        **order: Unpack[SubmitOptions],
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
        body, files = job_request_body(type, payload, order), files_by_name(file)
        if connection is not None:
            if files:
                raise InvalidInput(
                    "a job that is part of a transaction has no files to send", hint=FILES_IN_TRANSACTION_HINT
                )
            (asked,) = await enqueue_in_transaction(connection, [body])
            return AsyncSubmission(self, type, asked)
        text = bytes(body["payload"]) if is_large_payload(body["payload"]) else None
        await store_large_payloads(self._http, [body])
        if files:
            made, told = await submit_with_files(self._http, body, files, progress, hashing)
        else:
            made, told = await submit_job(self._http, body)
        return AsyncJob(self, made, text, created=told.created, reused=told.reused)

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: None = None, **order: Unpack[SubmitOptions]
    ) -> list[AsyncJob]: ...

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: HasCursor, **order: Unpack[SubmitOptions]
    ) -> list[AsyncSubmission]: ...

    async def submit_many(
        self,
        type: str,
        payloads: Iterable[object],
        *,
        connection: HasCursor | None = None,
        **order: Unpack[SubmitOptions],
    ) -> list[AsyncJob] | list[AsyncSubmission]:
        """Ask for many jobs of one type, some hundreds at a time; of those sent together all are made or none.

        With a `connection` all of them are part of its transaction.
        """
        bodies = [job_request_body(type, payload, order) for payload in payloads]
        if connection is not None:
            asked: list[AsyncSubmission] = []
            for start in range(0, len(bodies), JOBS_PER_REQUEST_MAX):
                answers = await enqueue_in_transaction(connection, bodies[start : start + JOBS_PER_REQUEST_MAX])
                asked += [AsyncSubmission(self, type, one) for one in answers]
            return asked
        return await self._submit_bodies(bodies)

    async def submit_orders(self, orders: Iterable[Mapping[str, Any]]) -> list[AsyncJob]:
        """Ask for many jobs, each of which says its `type`, its `payload` and the rest; sent as `submit_many` does."""
        return await self._submit_bodies([job_request_body(**_split_order(order)) for order in orders])

    async def _submit_bodies(self, bodies: Sequence[dict[str, Any]]) -> list[AsyncJob]:
        made: list[AsyncJob] = []
        for start in range(0, len(bodies), JOBS_PER_REQUEST_MAX):
            some = list(bodies[start : start + JOBS_PER_REQUEST_MAX])
            await store_large_payloads(self._http, some)
            safe = all("idempotency_key" in body for body in some)
            answer = await self._http.request(
                "POST", "/jobs/batch", _SubmitManyResponse, body={"jobs": some}, idempotent=safe
            )
            made += [AsyncJob(self, one.job, created=one.created, reused=one.reused) for one in answer.jobs]
        return made

    # -- looking at jobs ------------------------------------------------------------------------------------

    async def job(self, job_id: str) -> AsyncJob:
        """A job by its id."""
        return AsyncJob(self, await self.read(job_id))

    async def read(self, job_id: str, *, wait_seconds: float = 0.0) -> Job:
        """How a job stands; with `wait_seconds` once it is finished, or then."""
        if wait_seconds <= 0:
            return await self._http.request("GET", url_path("jobs", job_id), Job)
        query = {"wait_seconds": wait_seconds}
        return await self._http.request(
            "GET", url_path("jobs", job_id, "wait"), Job, query=query, wait_seconds=wait_seconds
        )

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
        async for one in self._http.iterate_items("/jobs", Page[Job], query=query, limit=limit):
            yield AsyncJob(self, one)

    async def summary(self, **filters: Any) -> Summary:
        """The jobs that fit every filter, in numbers."""
        return await self._http.request("GET", "/jobs/summary", Summary, query=filters)

    async def attempts(self, job_id: str) -> list[Attempt]:
        """The attempts of a job, oldest first."""
        return (await self._http.request("GET", url_path("jobs", job_id, "attempts"), Page[Attempt])).items

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is not running."""
        return await self._http.request("GET", url_path("jobs", job_id, "explain"), Explanation)

    async def log(self, job_id: str, *, attempt: int | None = None, after: int = 0) -> JobLog:
        """What an attempt has written, the newest unless told."""
        query = {"attempt": attempt, "after": after}
        return await self._http.request("GET", url_path("jobs", job_id, "log"), JobLog, query=query)

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
        return (await self._http.request("GET", url_path("jobs", job_id, "files"), Page[JobFile])).items

    async def file_url(self, file: JobFile, *, seconds: int = URL_SECONDS_MAX) -> str:
        """An address at which a file can be read without a credential, for so long."""
        return await signed_file_url(self._http, file, seconds=seconds)

    async def follow_log(self, job_id: str) -> AsyncIterator[JobLog]:
        """What a job writes, as it does, until it is finished."""
        async for told in follow_stream(self._http, url_path("jobs", job_id, "log"), {}):
            yield msgspec.json.decode(told.data, type=JobLog)

    async def batch(self, name: str) -> Batch:
        """The jobs enqueued under one name, in numbers."""
        return await self._http.request("GET", url_path("batches", name), Batch)

    async def definitions(self) -> list[Definition]:
        """The definitions that the tenant can see."""
        return (await self._http.request("GET", "/definitions", Page[Definition])).items

    # -- steering jobs --------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> Job:
        """Stop a waiting job at once, ask a running one to stop."""
        return await self._http.request("POST", url_path("jobs", job_id, "cancel"), Job, body={}, idempotent=True)

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
        body = {
            "reset_attempts": reset_attempts,
            **_changed_fields(priority=priority, max_attempts=max_attempts, run_at=run_at),
        }
        return await self._http.request("POST", url_path("jobs", job_id, "retry"), Job, body=body)

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
        body = _changed_fields(priority=priority, run_at=run_at, max_attempts=max_attempts, tags=tags)
        return await self._http.request("PATCH", url_path("jobs", job_id), Job, body=body, idempotent=True)

    async def act(self, action: str, *, dry_run: bool = False, **said: Any) -> BulkActionResult:
        """Cancel, retry or change the jobs that fit a filter, one step: go on with the `cursor` of the answer."""
        body = {"action": action, "dry_run": dry_run, **said}
        return await self._http.request("POST", "/jobs/actions", BulkActionResult, body=body, idempotent=dry_run)

    async def pauses(self) -> list[Pause]:
        """The types that are paused."""
        return (await self._http.request("GET", "/pauses", Page[Pause])).items

    async def pause(self, type: str) -> Pause:
        """Hand out no more jobs of a type."""
        return await self._http.request("PUT", url_path("pauses", type), Pause, body={}, idempotent=True)

    async def resume(self, type: str) -> None:
        """Hand out jobs of a type again."""
        await self._http.request("DELETE", url_path("pauses", type), bytes, idempotent=True)

    # -- events and workers ---------------------------------------------------------------------------------

    async def publish(
        self, name: str, data: object = None, *, dedupe_key: str | None = None, connection: HasCursor | None = None
    ) -> str:
        """Append an event of your own; answers its id. With a `connection` it is part of its transaction."""
        if connection is not None:
            return await publish_in_transaction(connection, name, encode_json(data, what="data"), dedupe_key)
        body = {"name": name, "data": encode_json(data, what="data"), **_changed_fields(dedupe_key=dedupe_key)}
        made = await self._http.request(
            "POST", "/events", _PublishResponse, body=body, idempotent=dedupe_key is not None
        )
        return made.id

    async def events(self, *, name: str | None = None, after: str | None = None) -> AsyncIterator[Event]:
        """Events as they happen, from now on or behind one; without gap or repeat, over any number of connections."""
        async for told in follow_stream(self._http, "/events/stream", {"name": name, "after": after}):
            if told.id is not None:
                yield msgspec.json.decode(told.data, type=Event)

    async def past_events(self, *, after: str | None = None, limit: int | None = None) -> AsyncIterator[Event]:
        """Events that are kept, oldest first, from the beginning or behind one; all of them, or `limit`."""
        left = limit
        while left is None or left > 0:
            query = {"after": after, "limit": min(ITEMS_PER_PAGE, left or ITEMS_PER_PAGE)}
            page = await self._http.request("GET", "/events", Page[Event], query=query)
            for event in page.items:
                yield event
            left = None if left is None else left - len(page.items)
            if page.next_cursor == after:
                return
            after = page.next_cursor

    def workers(self, *, shared: bool = False) -> AsyncIterator[RegisteredWorker]:
        """The workers of the tenant, or those that serve all."""
        return self._http.iterate_items("/workers", Page[RegisteredWorker], query=_shared_query(shared))

    async def worker(self, worker_id: str, *, shared: bool = False) -> RegisteredWorker:
        """One worker as it stands."""
        return await self._http.request(
            "GET", url_path("workers", worker_id), RegisteredWorker, query=_shared_query(shared)
        )

    async def drain(self, worker_id: str, *, shared: bool = False) -> RegisteredWorker:
        """Ask a worker to take no more work."""
        path = url_path("workers", worker_id, "drain")
        return await self._http.request(
            "POST", path, RegisteredWorker, query=_shared_query(shared), body={}, idempotent=True
        )

    async def remove_worker(self, worker_id: str, *, shared: bool = False) -> None:
        """Forget a worker. What it holds is given back."""
        await self._http.request("DELETE", url_path("workers", worker_id), bytes, query=_shared_query(shared))

    async def me(self) -> Me:
        """Who asks, and what they may do."""
        return await self._http.request("GET", "/me", Me)


def _shared_query(shared: bool) -> dict[str, Any]:
    return {"shared": "true" if shared else None}


def _split_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """An order in parts. Raises `InvalidInput`."""
    said = dict(order)
    if not isinstance(type := said.pop("type", None), str):
        raise InvalidInput("a job has no type", hint='Write it as in {"type": "greet", "payload": {"name": "Ada"}}.')
    return {"type": type, "payload": said.pop("payload", None), "order": said}


def _changed_fields(**values: Any) -> dict[str, Any]:
    """What is not `None`; a priority by its number."""
    said = {name: value for name, value in values.items() if value is not None}
    if "priority" in said:
        said["priority"] = parse_priority(said["priority"])
    return said
