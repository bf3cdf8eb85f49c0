"""A job on the server, in the hands of who asked for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ingot.client.asynchronous.job_files import AsyncOutputs
from ingot.client.errors import JobCanceled, JobDead, NotInTime
from ingot.client.job_request import Duration, to_seconds
from ingot.client.lazy_payload import async_ensure_fetched
from ingot.jobs.files import JobFile
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Attempt, Explanation, Job, JobStatus, Progress

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient

LONG_POLL_SECONDS: Final = 30.0  # That the server is asked to wait at a time.
WATCH_POLL_SECONDS: Final = 1.0  # How often a job that runs is looked at.


class AsyncJob:
    """A job. What it says of itself is as of when it was last asked: `refresh` asks again.

    `created` says whether the call that answered with it made it, and `reused` that it was there, and does the same.
    """

    def __init__(
        self,
        client: AsyncClient,
        data: Job,
        payload: bytes | None = None,
        *,
        created: bool = False,
        reused: bool = False,
    ) -> None:
        self._client = client
        self.data = data
        self.created = created
        self.reused = reused
        self._payload = payload  # Of one that travels as a blob, when it is here.

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.data.type} {self.id} {self.status}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.data.id

    @property
    def type(self) -> str:
        """Its type."""
        return self.data.type

    @property
    def status(self) -> JobStatus:
        """Where it stood."""
        return self.data.status

    @property
    def finished(self) -> bool:
        """Whether it was over."""
        return self.status in FINISHED

    @property
    def payload(self) -> Any:
        """What it was given. One that travels as a blob is fetched first: `fetch_payload`."""
        if self.data.payload_blob is None:
            return self.data.read("payload")
        if self._payload is None:
            async_ensure_fetched(self.fetch_payload, "payload")
        return msgspec.json.decode(self._payload or b"null")

    async def fetch_payload(self) -> Any:
        """What it was given, also when that is over 64 KiB and travels as a blob."""
        if self.data.payload_blob is not None and self._payload is None:
            self._payload = await self._client.blobs.load(self.data.payload_blob)
        return self.payload

    @property
    def outputs(self) -> AsyncOutputs:
        """The files that it has made: `job.outputs["report.pdf"].text()`."""
        return AsyncOutputs(self._client, self.id)

    @property
    def result(self) -> Any:
        """What the work came to; `None` as long as it is not done."""
        return self.data.read("result")

    @property
    def error(self) -> str | None:
        """Why the last attempt failed."""
        return self.data.last_error

    @property
    def progress(self) -> Progress | None:
        """How far it had come."""
        return self.data.progress

    async def refresh(self) -> AsyncJob:
        """Ask how it stands now."""
        self.data = await self._client.read(self.id)
        return self

    async def wait(self, timeout: Duration | None = None) -> AsyncJob:
        """Wait until it is finished.

        Raises `JobDead` or `JobCanceled` when it did not succeed, and `NotInTime` after the timeout.
        """
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        while not self.finished:
            left = LONG_POLL_SECONDS if until is None else min(LONG_POLL_SECONDS, until - time.monotonic())
            if left <= 0:
                raise NotInTime(f"the job {self.id} is {self.status} after {timeout}")
            self.data = await self._client.read(self.id, wait_seconds=left)
        if self.status is JobStatus.DEAD:
            raise JobDead(f"the job {self.id} is dead: {self.error}")
        if self.status is JobStatus.CANCELED:
            raise JobCanceled(f"the job {self.id} was canceled")
        return self

    async def cancel(self) -> AsyncJob:
        """Stop it at once while it waits; ask it to stop while it runs."""
        self.data = await self._client.cancel(self.id)
        return self

    async def retry(self, *, reset_attempts: bool = False) -> AsyncJob:
        """Run it again when it is finished."""
        self.data = await self._client.retry(self.id, reset_attempts=reset_attempts)
        return self

    async def attempts(self) -> list[Attempt]:
        """Its attempts, oldest first."""
        return await self._client.attempts(self.id)

    async def explain(self) -> Explanation:
        """Why it is not running."""
        return await self._client.explain(self.id)

    async def files(self) -> list[JobFile]:
        """Its files: inputs, outputs, logs that are long, and checkpoints."""
        return await self._client.files(self.id)

    async def log(self) -> str:
        """What its newest attempt has written; while that runs, and when it was lost, the end of it."""
        return (await self._client.whole_log(self.id)).text

    async def follow_log(self) -> AsyncIterator[str]:
        """What it writes, as it does, over all attempts, until it is finished."""
        async for part in self._client.follow_log(self.id):
            yield part.text

    async def watch(self) -> AsyncIterator[AsyncJob]:
        """The job as it stands now, and whenever it has changed, until it is finished."""
        yield await self.refresh()
        while not self.finished:
            known = self.data
            self.data = await self._client.read(self.id, wait_seconds=WATCH_POLL_SECONDS)
            if self.data != known:
                yield self
