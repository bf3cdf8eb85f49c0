"""The handle of a job, to wait for it, read it and control it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ingot.client.asynchronous.job_files import AsyncOutputs
from ingot.client.errors import JobCanceled, JobDead, NotInTime
from ingot.client.job_request import Duration, to_seconds
from ingot.client.lazy_payload import async_ensure_fetched
from ingot.jobs.files import JobFile
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Attempt, Explanation, Job, JobStatus, Progress
from ingot.kernel.errors import IngotError

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient

LONG_POLL_SECONDS: Final = 30.0  # How long one request waits for the job.
WATCH_POLL_SECONDS: Final = 1.0  # How often a running job is read.
EXPLAIN_SECONDS: Final = 5.0  # After this time, the reason why a job does not run is logged.
WAITING: Final = (JobStatus.BLOCKED, JobStatus.QUEUED)
log = logging.getLogger("ingot.client")


class AsyncJob:
    """A job on the server. Its attributes are those of the last read; `refresh` reads them again.

    `created` is true if the call that returned this object created the job. `reused` is true if the call returned an
    equivalent job instead, because the definition of the type allows reuse. `data` has all fields of the job.
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
        self._payload = payload  # Only of a payload that is stored as a blob.

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.data.type} {self.id} {self.status}>"

    @property
    def id(self) -> str:
        """ID of the job."""
        return self.data.id

    @property
    def type(self) -> str:
        """Type of the job."""
        return self.data.type

    @property
    def status(self) -> JobStatus:
        """Status of the job at the last read."""
        return self.data.status

    @property
    def finished(self) -> bool:
        """Whether the job was finished at the last read: succeeded, dead or canceled."""
        return self.status in FINISHED

    @property
    def payload(self) -> Any:
        """Payload of the job. One above 64 KiB is stored as a blob and has to be fetched first: see `fetch_payload`."""
        if self.data.payload_blob is None:
            return self.data.read("payload")
        if self._payload is None:
            async_ensure_fetched(self.fetch_payload, "payload")
        return msgspec.json.decode(self._payload or b"null")

    async def fetch_payload(self) -> Any:
        """Return the payload. It is fetched if it is stored as a blob."""
        if self.data.payload_blob is not None and self._payload is None:
            self._payload = await self._client.blobs.load(self.data.payload_blob)
        return self.payload

    @property
    def outputs(self) -> AsyncOutputs:
        """Output files of the job, by name: `job.outputs["report.pdf"].save("reports")`."""
        return AsyncOutputs(self._client, self.id)

    @property
    def result(self) -> Any:
        """Result of the job; `None` unless it has succeeded."""
        return self.data.read("result")

    @property
    def error(self) -> str | None:
        """Error of the last failed attempt."""
        return self.data.last_error

    @property
    def progress(self) -> Progress | None:
        """Progress of the job at the last read."""
        return self.data.progress

    async def refresh(self) -> AsyncJob:
        """Read the job again, and return this object."""
        self.data = await self._client.read(self.id)
        return self

    async def wait(self, timeout: Duration | None = None) -> AsyncJob:
        """Wait until the job has succeeded, and return this object.

        If the job does not run after 5 seconds, the reason is logged as a warning. Raises `JobDead` or `JobCanceled` if
        it did not succeed, and `NotInTime`, with the reason, after the timeout.
        """
        started_at = time.monotonic()
        deadline = None if timeout is None else started_at + to_seconds(timeout)
        explain_at: float | None = started_at + EXPLAIN_SECONDS
        while not self.finished:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise NotInTime(
                    f"the job {self.id} is still {self.status} after {timeout}{await self._reason_suffix()}"
                )
            if explain_at is not None and now >= explain_at:
                explain_at = None
                if self.status in WAITING and (reason := await self._reason_suffix()):
                    log.warning("the job %s is %s%s", self.id, self.status, reason)
            ends = (at for at in (now + LONG_POLL_SECONDS, deadline, explain_at) if at is not None)
            self.data = await self._client.read(self.id, wait_seconds=max(0.0, min(ends) - now))
        if self.status is JobStatus.DEAD:
            raise JobDead(f"the job {self.id} is dead: {self.error}")
        if self.status is JobStatus.CANCELED:
            raise JobCanceled(f"the job {self.id} was canceled{await self._reason_suffix()}")
        return self

    async def _reason_suffix(self) -> str:
        """Return what `explain` says, to be appended to a message; nothing if that cannot be read."""
        with suppress(IngotError):
            for reason in (await self.explain()).reasons:
                return f": {reason.message}"
        return ""

    async def cancel(self) -> AsyncJob:
        """Cancel the job if it is waiting, or ask it to stop if it is running."""
        self.data = await self._client.cancel(self.id)
        return self

    async def retry(self, *, reset_attempts: bool = False) -> AsyncJob:
        """Run the finished job again. `reset_attempts` sets its failures and crashes to zero."""
        self.data = await self._client.retry(self.id, reset_attempts=reset_attempts)
        return self

    async def attempts(self) -> list[Attempt]:
        """Return the attempts of the job, oldest first."""
        return await self._client.attempts(self.id)

    async def explain(self) -> Explanation:
        """Explain why the job is not running, or how it ended."""
        return await self._client.explain(self.id)

    async def files(self) -> list[JobFile]:
        """Return the files of the job: inputs, outputs, long logs and checkpoints."""
        return await self._client.files(self.id)

    async def log(self) -> str:
        """Return the log of the newest attempt. Of a long log, only the end is available while the attempt runs."""
        return (await self._client.whole_log(self.id)).text

    async def follow_log(self) -> AsyncIterator[str]:
        """Yield the log of the newest attempt and of later ones as it is written, until the job is finished."""
        async for part in self._client.follow_log(self.id):
            yield part.text

    async def watch(self) -> AsyncIterator[AsyncJob]:
        """Yield this object at once and after each change of the job, until it is finished."""
        yield await self.refresh()
        while not self.finished:
            previous = self.data
            self.data = await self._client.read(self.id, wait_seconds=WATCH_POLL_SECONDS)
            if self.data != previous:
                yield self
