"""The client of a server, with all its operations."""

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
FILES_IN_TRANSACTION_HINT = "Store them first with client.blobs.put and pass their IDs as `inputs`."


class _SubmitManyResponse(msgspec.Struct, frozen=True):
    jobs: list[Enqueued]


class _PublishResponse(msgspec.Struct, frozen=True):
    id: str


class AsyncClient:
    """A client of an Ingot server. Use it in `async with`, or call `close` at the end.

    Arguments that are not passed are read from `INGOT_SERVER_URL`, `INGOT_TOKEN` and `INGOT_TENANT`. On the machine of
    the server, its operator token is found automatically. Requests that are safe to repeat are retried for up to
    `patience` seconds. Requests that a limit refused for the time in `Retry-After` are retried for up to
    `limit_patience` seconds, if that is longer.

    Methods raise the errors of the API as subclasses of `IngotError`, with a `code`, a `detail` and a `hint`.
    `ServerUnreachable` means that the server could not be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        patience: float = 30.0,
        limit_patience: float = 0.0,
    ) -> None:
        self._http = AsyncHttp(
            resolve_server_address(url, token=token, tenant=tenant, allow_missing_token=True),
            RetryPolicy(retry_seconds=patience, limit_seconds=limit_patience),
        )
        self.admin = AsyncAdmin(self._http)
        self.blobs = AsyncBlobs(self._http)
        self.secrets = AsyncRecords(self._http, "secrets", Secret)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    # -- submitting jobs ------------------------------------------------------------------------------------

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
        **options: Unpack[SubmitOptions],
    ) -> AsyncJob: ...

    @overload
    async def submit(
        self, type: str, payload: object = None, *, connection: HasCursor, **options: Unpack[SubmitOptions]
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
        **options: Unpack[SubmitOptions],
    ) -> AsyncJob | AsyncSubmission:
        """Submit a job and return it. `options` are those of `SubmitOptions`, such as `priority` and `delay`.

        With an `idempotency_key`, the request is retried after a lost response and still creates only one job. A
        payload above 64 KiB is stored as a blob first.

        `file` is an input file, or a dict of several by name: each is a path, an open binary file, or bytes. They are
        uploaded with the job, which becomes ready when the last one is complete. Files that the server already has are
        not sent. `hashing` and `progress` are called with the number of bytes hashed or sent so far, and the total.
        For blobs that are stored already, pass their IDs as `inputs`.

        If the definition of the type allows reuse, an existing job that does the same work is returned, and its
        `reused` is true. With `force`, a new job is created.

        With a `connection` to Ingot's database, the job is part of its transaction and nothing is sent to the server.
        """
        body, files = job_request_body(type, payload, options), files_by_name(file)
        if connection is not None:
            if files:
                raise InvalidInput("a job in a transaction cannot upload files", hint=FILES_IN_TRANSACTION_HINT)
            (submitted,) = await enqueue_in_transaction(connection, [body])
            return AsyncSubmission(self, type, submitted)
        large_payload = bytes(body["payload"]) if is_large_payload(body["payload"]) else None
        await store_large_payloads(self._http, [body])
        if files:
            job, result = await submit_with_files(self._http, body, files, progress, hashing)
        else:
            job, result = await submit_job(self._http, body)
        return AsyncJob(self, job, large_payload, created=result.created, reused=result.reused)

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: None = None, **options: Unpack[SubmitOptions]
    ) -> list[AsyncJob]: ...

    @overload
    async def submit_many(
        self, type: str, payloads: Iterable[object], *, connection: HasCursor, **options: Unpack[SubmitOptions]
    ) -> list[AsyncSubmission]: ...

    async def submit_many(
        self,
        type: str,
        payloads: Iterable[object],
        *,
        connection: HasCursor | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[AsyncJob] | list[AsyncSubmission]:
        """Submit many jobs of one type with the same options, and return them in order.

        They are sent 500 at a time. The server accepts either all jobs of a request or none. With a `connection`, all
        jobs are part of its transaction.
        """
        bodies = [job_request_body(type, payload, options) for payload in payloads]
        if connection is not None:
            submissions: list[AsyncSubmission] = []
            for start in range(0, len(bodies), JOBS_PER_REQUEST_MAX):
                results = await enqueue_in_transaction(connection, bodies[start : start + JOBS_PER_REQUEST_MAX])
                submissions += [AsyncSubmission(self, type, result) for result in results]
            return submissions
        return await self._submit_bodies(bodies)

    async def submit_orders(self, orders: Iterable[Mapping[str, Any]]) -> list[AsyncJob]:
        """Submit many jobs, each with its own `type`, `payload` and options. They are sent as in `submit_many`."""
        return await self._submit_bodies([job_request_body(**_split_order(order)) for order in orders])

    async def _submit_bodies(self, bodies: Sequence[dict[str, Any]]) -> list[AsyncJob]:
        jobs: list[AsyncJob] = []
        for start in range(0, len(bodies), JOBS_PER_REQUEST_MAX):
            group = list(bodies[start : start + JOBS_PER_REQUEST_MAX])
            await store_large_payloads(self._http, group)
            is_idempotent = all("idempotency_key" in body for body in group)
            response = await self._http.request(
                "POST", "/jobs/batch", _SubmitManyResponse, body={"jobs": group}, idempotent=is_idempotent
            )
            jobs += [
                AsyncJob(self, enqueued.job, created=enqueued.created, reused=enqueued.reused)
                for enqueued in response.jobs
            ]
        return jobs

    # -- reading jobs ---------------------------------------------------------------------------------------

    async def job(self, job_id: str) -> AsyncJob:
        """Return the job with this ID. Raises `JobNotFound`."""
        return AsyncJob(self, await self.read(job_id))

    async def read(self, job_id: str, *, wait_seconds: float = 0.0) -> Job:
        """Return the data of a job. With `wait_seconds`, wait up to that long until it is finished."""
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
        """Iterate over the jobs that match all filters, newest first: all of them, or up to `limit`."""
        query = {
            "status": status,
            "type": type,
            "tag": tag,
            "source": source,
            "created_after": created_after,
            "created_before": created_before,
        }
        async for job in self._http.iterate_items("/jobs", Page[Job], query=query, limit=limit):
            yield AsyncJob(self, job)

    async def summary(self, **filters: Any) -> Summary:
        """Count the jobs that match all filters, which are those of `jobs` except `status`."""
        return await self._http.request("GET", "/jobs/summary", Summary, query=filters)

    async def attempts(self, job_id: str) -> list[Attempt]:
        """Return the attempts of a job, oldest first."""
        return (await self._http.request("GET", url_path("jobs", job_id, "attempts"), Page[Attempt])).items

    async def explain(self, job_id: str) -> Explanation:
        """Explain why a job is not running, or how it ended."""
        return await self._http.request("GET", url_path("jobs", job_id, "explain"), Explanation)

    async def log(self, job_id: str, *, attempt: int | None = None, after: int = 0) -> JobLog:
        """Return the log of an attempt from the position `after`, by default that of the newest attempt.

        Only the end of a long log is available this way; see `whole_log`.
        """
        query = {"attempt": attempt, "after": after}
        return await self._http.request("GET", url_path("jobs", job_id, "log"), JobLog, query=query)

    async def whole_log(self, job_id: str, *, attempt: int | None = None) -> JobLog:
        """Return the whole log of an attempt, by default that of the newest one.

        The beginning of a long log is available once the attempt has ended, unless its lease was lost.
        """
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
        """Return the files of a job: inputs, outputs, long logs and checkpoints."""
        return (await self._http.request("GET", url_path("jobs", job_id, "files"), Page[JobFile])).items

    async def file_url(self, file: JobFile, *, seconds: int = URL_SECONDS_MAX) -> str:
        """Return a URL from which a file can be read without credentials, for up to `seconds`."""
        return await signed_file_url(self._http, file, seconds=seconds)

    async def follow_log(self, job_id: str) -> AsyncIterator[JobLog]:
        """Yield the log of the newest attempt and of later ones as it is written, until the job is finished."""
        async for event in follow_stream(self._http, url_path("jobs", job_id, "log"), {}):
            yield msgspec.json.decode(event.data, type=JobLog)

    async def batch(self, name: str) -> Batch:
        """Return the counters of a batch of jobs. Raises `BatchNotFound`."""
        return await self._http.request("GET", url_path("batches", name), Batch)

    async def definitions(self) -> list[Definition]:
        """Return the definitions that apply in the tenant, ordered by type."""
        return (await self._http.request("GET", "/definitions", Page[Definition])).items

    # -- controlling jobs -----------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> Job:
        """Cancel a waiting job, or ask a running job to stop."""
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
        """Run a finished job again. `reset_attempts` sets its failures and crashes to zero."""
        body = {
            "reset_attempts": reset_attempts,
            **_present_fields(priority=priority, max_attempts=max_attempts, run_at=run_at),
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
        """Change the priority, start time or maximum attempts of a waiting job, or the tags of any job."""
        body = _present_fields(priority=priority, run_at=run_at, max_attempts=max_attempts, tags=tags)
        return await self._http.request("PATCH", url_path("jobs", job_id), Job, body=body, idempotent=True)

    async def act(self, action: str, *, dry_run: bool = False, **options: Any) -> BulkActionResult:
        """Run one step of a bulk action: `cancel`, `retry` or `change` the jobs that match `filter`.

        `options` are `filter`, `all`, `limit` and `cursor`, and those of the action. To continue, pass the
        `next_cursor` of the result as `cursor`. With `dry_run`, nothing is changed.
        """
        body = {"action": action, "dry_run": dry_run, **options}
        return await self._http.request("POST", "/jobs/actions", BulkActionResult, body=body, idempotent=dry_run)

    async def pauses(self) -> list[Pause]:
        """Return the paused types of the tenant."""
        return (await self._http.request("GET", "/pauses", Page[Pause])).items

    async def pause(self, type: str) -> Pause:
        """Pause a type: workers get no more jobs of it. Running jobs continue."""
        return await self._http.request("PUT", url_path("pauses", type), Pause, body={}, idempotent=True)

    async def resume(self, type: str) -> None:
        """Resume a paused type."""
        await self._http.request("DELETE", url_path("pauses", type), bytes, idempotent=True)

    # -- events and workers ---------------------------------------------------------------------------------

    async def publish(
        self, name: str, data: object = None, *, dedupe_key: str | None = None, connection: HasCursor | None = None
    ) -> str:
        """Publish an event and return its ID.

        If an event with the same `dedupe_key` was published within the last day, the ID of that event is returned. With
        a `connection` to Ingot's database, the event is part of its transaction.
        """
        if connection is not None:
            return await publish_in_transaction(connection, name, encode_json(data, name="data"), dedupe_key)
        body = {"name": name, "data": encode_json(data, name="data"), **_present_fields(dedupe_key=dedupe_key)}
        response = await self._http.request(
            "POST", "/events", _PublishResponse, body=body, idempotent=dedupe_key is not None
        )
        return response.id

    async def events(self, *, name: str | None = None, after: str | None = None) -> AsyncIterator[Event]:
        """Yield events as they happen, from now on or after the event ID `after`, without gaps or repeats.

        A lost connection is restored. `name` selects the events whose names begin with one of these prefixes. Prefixes
        are whole segments and separated by commas, such as `job.failed,worker`.
        """
        async for event in follow_stream(self._http, "/events/stream", {"name": name, "after": after}):
            if event.id is not None:
                yield msgspec.json.decode(event.data, type=Event)

    async def past_events(self, *, after: str | None = None, limit: int | None = None) -> AsyncIterator[Event]:
        """Iterate over the stored events, oldest first, from the beginning or after the event ID `after`.

        It ends at the newest event, or after `limit` events.
        """
        remaining = limit
        while remaining is None or remaining > 0:
            query = {"after": after, "limit": min(ITEMS_PER_PAGE, remaining or ITEMS_PER_PAGE)}
            page = await self._http.request("GET", "/events", Page[Event], query=query)
            for event in page.items:
                yield event
            remaining = None if remaining is None else remaining - len(page.items)
            if page.next_cursor == after:
                return
            after = page.next_cursor

    def workers(self, *, shared: bool = False) -> AsyncIterator[RegisteredWorker]:
        """Iterate over the workers of the tenant, or over the shared workers."""
        return self._http.iterate_items("/workers", Page[RegisteredWorker], query=_shared_query(shared))

    async def worker(self, worker_id: str, *, shared: bool = False) -> RegisteredWorker:
        """Return a worker. Raises `WorkerNotFound`."""
        return await self._http.request(
            "GET", url_path("workers", worker_id), RegisteredWorker, query=_shared_query(shared)
        )

    async def drain(self, worker_id: str, *, shared: bool = False) -> RegisteredWorker:
        """Ask a worker to drain: it claims no more jobs, finishes those that it runs, and leaves."""
        path = url_path("workers", worker_id, "drain")
        return await self._http.request(
            "POST", path, RegisteredWorker, query=_shared_query(shared), body={}, idempotent=True
        )

    async def remove_worker(self, worker_id: str, *, shared: bool = False) -> None:
        """Remove a worker. Jobs that it runs are released."""
        await self._http.request("DELETE", url_path("workers", worker_id), bytes, query=_shared_query(shared))

    async def me(self) -> Me:
        """Return the token or person that this client is authenticated as, with its grants."""
        return await self._http.request("GET", "/me", Me)


def _shared_query(shared: bool) -> dict[str, Any]:
    return {"shared": "true" if shared else None}


def _split_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """Split the description of a job into the arguments of `job_request_body`. Raises `InvalidInput`."""
    options = dict(order)
    if not isinstance(type := options.pop("type", None), str):
        raise InvalidInput("a job has no type", hint='Pass it as in {"type": "greet", "payload": {"name": "Ada"}}.')
    return {"type": type, "payload": options.pop("payload", None), "options": options}


def _present_fields(**values: Any) -> dict[str, Any]:
    """Return the values that are not `None`, with the priority as a number."""
    fields = {name: value for name, value in values.items() if value is not None}
    if "priority" in fields:
        fields["priority"] = parse_priority(fields["priority"])
    return fields
