"""Files of jobs: what is sent with one, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ingot.blobs.checks import guess_content_type
from ingot.blobs.errors import UploadEnded, UploadIncomplete, UploadNotFound, UploadTaken, WrongDigest, WrongLength
from ingot.blobs.model import INLINE_BYTES_MAX, UploadState
from ingot.client.asynchronous.blobs import compute_digests
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.asynchronous.upload import AsyncUploader
from ingot.client.asynchronous.upload_session import AsyncNewUpload, AsyncPlannedUpload, AsyncSharedUpload
from ingot.client.concurrency import async_for_each
from ingot.client.errors import invalid_response_error
from ingot.client.job_request import is_large_payload
from ingot.client.partial_file import target_path
from ingot.client.upload_source import CombinedProgress, ProgressCallback, Sendable, UploadSource
from ingot.client.url_path import url_path
from ingot.jobs.files import FileNotFound, JobFile
from ingot.jobs.model import NULL, Job
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.wire.blobs import URL_SECONDS_MAX, SignedUrl, UploadPlan

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient

CONCURRENT_PAYLOADS_MAX: Final = 4
SUBMIT_TRIES_MAX: Final = 3
INLINE_FILES_BYTES_MAX: Final = 256 * 1024  # Of the files that travel with the order of their job.
Data = bytes


class SubmitResult(msgspec.Struct, frozen=True):
    """What the answer to an order says besides the job."""

    created: bool = True
    reused: bool = False
    uploads: list[UploadPlan] = []


class AsyncOutput:
    """A file that a job has made, as it is when it is asked for."""

    def __init__(self, client: AsyncClient, job_id: str, name: str) -> None:
        self._client = client
        self._job_id = job_id
        self.name = name

    async def read(self) -> JobFile:
        """What is known of it. Raises `FileNotFound` while the job has not succeeded with it."""
        for file in await self._client.files(self._job_id):
            if (file.kind, file.name) == ("output", self.name):
                return file
        raise FileNotFound(f"the job has no output {self.name[:64]!r}")

    async def text(self, encoding: str = "utf-8") -> str:
        """It as a text."""
        return (await self.bytes()).decode(encoding)

    async def save(self, to: str | PathLike[str], *, progress: ProgressCallback | None = None) -> Path:
        """Write it to a path, or under its name into a folder; answers where it is."""
        file = await self.read()
        return await self._client.blobs.save(file.blob_id, file.size, target_path(to, self.name), progress=progress)

    async def url(self, *, seconds: int = URL_SECONDS_MAX) -> str:
        """An address at which it can be read without a credential, for so long."""
        return await self._client.file_url(await self.read(), seconds=seconds)

    async def bytes(self) -> Data:
        """It whole."""
        return await self._client.blobs.load((await self.read()).blob_id)


class AsyncOutputs:
    """The files that a job has made, by name: `job.outputs["report.pdf"]`. Who goes through them gets their names."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id

    async def __aiter__(self) -> AsyncIterator[str]:
        for file in await self._client.files(self._job_id):
            if file.kind == "output":
                yield file.name

    def __getitem__(self, name: str) -> AsyncOutput:
        if not isinstance(name, str):  # Without this, `in` and `for` would count up from 0 and never end.
            raise TypeError(f"an output has a name, and {name!r} is none")
        return AsyncOutput(self._client, self._job_id, name)


async def submit_job(http: AsyncHttp, body: dict[str, Any]) -> tuple[Job, SubmitResult]:
    """Ask for a job."""
    said = await http.request("POST", "/jobs", bytes, body=body, idempotent="idempotency_key" in body)
    try:
        return msgspec.json.decode(said, type=Job), msgspec.json.decode(said, type=SubmitResult)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_response_error(said, error) from None


async def submit_with_files(
    http: AsyncHttp,
    body: dict[str, Any],
    files: Mapping[str, Sendable],
    progress: ProgressCallback | None,
    hashing: ProgressCallback | None,
) -> tuple[Job, SubmitResult]:
    """Ask for a job, and send the files that it waits for. What cannot be sent cancels it, if nobody else waits for it.

    One that is reused may be given up by who began it: then it is asked for again.
    """
    with ExitStack() as opened:
        sent = {name: opened.enter_context(UploadSource(source)) for name, source in files.items()}
        hashed_of = CombinedProgress(sum(outgoing.size or 0 for outgoing in sent.values()), hashing)
        room = INLINE_FILES_BYTES_MAX
        uploads = []
        for number, (name, outgoing) in enumerate(sent.items()):
            uploads.append(
                await _upload_request(name, outgoing, partial(_report, hashed_of, number), remaining_bytes=room)
            )
            room -= len(uploads[-1].get("data", b""))
        meter = CombinedProgress(sum(one["size"] for one in uploads), progress)
        for tries_left in reversed(range(SUBMIT_TRIES_MAX)):
            job, told = await submit_job(http, {**body, "uploads": uploads})
            coming = {plan.upload.name: plan for plan in told.uploads if plan.upload.state is UploadState.OPEN}
            if came := sum(len(one.get("data", b"")) for one in uploads if one["name"] not in coming):
                meter.report(len(uploads), came)
            plans = [(outgoing, coming[name]) for name, outgoing in sent.items() if name in coming]
            try:
                return await _send_files(http, job, plans, meter, shared=told.reused), told
            except (UploadNotFound, UploadEnded):
                if not told.reused or not tries_left:
                    raise
            except (UploadIncomplete, WrongDigest, WrongLength):
                if not told.reused or not tries_left:
                    raise
                body = {**body, "force": True}  # Who began it announced something else than this file.
    raise AssertionError("the last try answers or raises")


async def _send_files(
    http: AsyncHttp, job: Job, plans: list[tuple[UploadSource, UploadPlan]], meter: CombinedProgress, *, shared: bool
) -> Job:
    """Send what a job waits for, and answer how it stands. What somebody else sends by now is left to them."""
    for number, (outgoing, plan) in enumerate(plans):
        desk = (AsyncSharedUpload if shared else AsyncPlannedUpload)(http, plan)
        with suppress(UploadTaken):
            await AsyncUploader(http, outgoing, desk, progress=partial(_report, meter, number)).run()
    if plans:
        with suppress(IngotError):  # Who may make jobs need not be one who may look at them.
            return await http.request("GET", url_path("jobs", job.id), Job)
    return job


def _report(meter: CombinedProgress, number: int, done: int, total: int) -> None:  # noqa: ARG001 - as in `Progress`
    meter.report(number, done)


async def _upload_request(
    name: str, outgoing: UploadSource, hashing: ProgressCallback, *, remaining_bytes: int
) -> dict[str, Any]:
    """What is told of a file; a small one comes with it, while there is room."""
    if outgoing.size is None:
        raise InvalidInput(f"{name!r} can be read only once", hint="Store it in a file first.")
    digests = await compute_digests(outgoing, hashing)
    known = {"size": outgoing.size, "blob_id": digests.blob_id, "sha256": digests.sha256}
    order = {"name": name, "content_type": guess_content_type(name), **known}
    if outgoing.size <= min(remaining_bytes, INLINE_BYTES_MAX):
        order["data"] = await asyncio.to_thread(outgoing.read, 0, outgoing.size)
    return order


async def store_large_payloads(http: AsyncHttp, bodies: list[dict[str, Any]]) -> None:
    """Store the payloads that are too large to travel inside, and name them instead."""

    async def send(body: dict[str, Any]) -> None:
        body["payload_blob"] = await _store_payload(http, bytes(body["payload"]), body["type"])
        body["payload"] = NULL

    large = [body for body in bodies if is_large_payload(body["payload"])]
    if large:
        await async_for_each(send, large, limit=min(len(large), CONCURRENT_PAYLOADS_MAX))


async def _store_payload(http: AsyncHttp, text: Data, type: str) -> str:
    """Store a payload of a job of this type, as who may make such jobs may do; answers the id of its blob."""
    with UploadSource(text) as outgoing:
        digests = await compute_digests(outgoing, None)
        known = {"size": outgoing.size, "blob_id": digests.blob_id, "sha256": digests.sha256}
        order = {**known, "content_type": "application/json", "payload_of": type}
        await AsyncUploader(http, outgoing, AsyncNewUpload(http, order)).run()
    return digests.blob_id


async def signed_file_url(http: AsyncHttp, file: JobFile, *, seconds: int) -> str:
    """An address of a file that needs no credential."""
    query = {"seconds": seconds, "name": file.name, "content_type": file.content_type}
    return (await http.request("GET", url_path("blobs", file.blob_id, "url"), SignedUrl, query=query)).url
