"""Files of jobs: inputs that are sent with a job, and its outputs."""

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
INLINE_FILES_BYTES_MAX: Final = 256 * 1024  # All files together that are sent in the request for their job.
Data = bytes


class SubmitResult(msgspec.Struct, frozen=True):
    """The fields of the response to a submitted job that are not fields of the job."""

    created: bool = True
    reused: bool = False
    uploads: list[UploadPlan] = []


class AsyncOutput:
    """An output file of a job. Each method reads its current version."""

    def __init__(self, client: AsyncClient, job_id: str, name: str) -> None:
        self._client = client
        self._job_id = job_id
        self.name = name

    async def read(self) -> JobFile:
        """Return the description of the file. Raises `FileNotFound` unless the job has succeeded with this output."""
        for file in await self._client.files(self._job_id):
            if (file.kind, file.name) == ("output", self.name):
                return file
        raise FileNotFound(f"the job has no output {self.name[:64]!r}")

    async def text(self, encoding: str = "utf-8") -> str:
        """Return the content as text."""
        return (await self.bytes()).decode(encoding)

    async def save(self, to: str | PathLike[str], *, progress: ProgressCallback | None = None) -> Path:
        """Write the file to the path `to`, or into the folder `to` under its name, and return its path."""
        file = await self.read()
        return await self._client.blobs.save(file.blob_id, file.size, target_path(to, self.name), progress=progress)

    async def url(self, *, seconds: int = URL_SECONDS_MAX) -> str:
        """Return a URL from which the file can be read without credentials, for up to `seconds`."""
        return await self._client.file_url(await self.read(), seconds=seconds)

    async def bytes(self) -> Data:
        """Return the content."""
        return await self._client.blobs.load((await self.read()).blob_id)


class AsyncOutputs:
    """The output files of a job, by name: `job.outputs["report.pdf"]`. Iteration yields the names."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id

    async def __aiter__(self) -> AsyncIterator[str]:
        for file in await self._client.files(self._job_id):
            if file.kind == "output":
                yield file.name

    def __getitem__(self, name: str) -> AsyncOutput:
        if not isinstance(name, str):  # Otherwise `in` and `for` would call this with 0, 1, 2 … without end.
            raise TypeError(f"the name of an output must be a str, got {name!r}")
        return AsyncOutput(self._client, self._job_id, name)


async def submit_job(http: AsyncHttp, body: dict[str, Any]) -> tuple[Job, SubmitResult]:
    """Submit a job."""
    response = await http.request("POST", "/jobs", bytes, body=body, idempotent="idempotency_key" in body)
    try:
        return msgspec.json.decode(response, type=Job), msgspec.json.decode(response, type=SubmitResult)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_response_error(response, error) from None


async def submit_with_files(
    http: AsyncHttp,
    body: dict[str, Any],
    files: Mapping[str, Sendable],
    progress: ProgressCallback | None,
    hashing: ProgressCallback | None,
) -> tuple[Job, SubmitResult]:
    """Submit a job and send its files.

    If a file cannot be sent, the job is canceled, unless another client waits for it too. If the client that began the
    upload of a reused job gave up, the job is submitted again.
    """
    with ExitStack() as open_sources:
        sources = {name: open_sources.enter_context(UploadSource(source)) for name, source in files.items()}
        hashing_progress = CombinedProgress(sum(source.size or 0 for source in sources.values()), hashing)
        inline_bytes_left = INLINE_FILES_BYTES_MAX
        uploads = []
        for number, (name, source) in enumerate(sources.items()):
            report_hashed = partial(_report, hashing_progress, number)
            uploads.append(await _upload_request(name, source, report_hashed, inline_bytes_left=inline_bytes_left))
            inline_bytes_left -= len(uploads[-1].get("data", b""))
        upload_progress = CombinedProgress(sum(upload["size"] for upload in uploads), progress)
        for tries_left in reversed(range(SUBMIT_TRIES_MAX)):
            job, result = await submit_job(http, {**body, "uploads": uploads})
            open_plans = {plan.upload.name: plan for plan in result.uploads if plan.upload.state is UploadState.OPEN}
            inline_bytes = sum(len(upload.get("data", b"")) for upload in uploads if upload["name"] not in open_plans)
            if inline_bytes:
                upload_progress.report(len(uploads), inline_bytes)
            plans = [(source, open_plans[name]) for name, source in sources.items() if name in open_plans]
            try:
                return await _send_files(http, job, plans, upload_progress, is_reused=result.reused), result
            except (UploadNotFound, UploadEnded):
                if not result.reused or not tries_left:
                    raise
            except (UploadIncomplete, WrongDigest, WrongLength):
                if not result.reused or not tries_left:
                    raise
                body = {**body, "force": True}  # The client that began the upload announced another file.
    raise AssertionError("the last try returns or raises")


async def _send_files(
    http: AsyncHttp,
    job: Job,
    plans: list[tuple[UploadSource, UploadPlan]],
    progress: CombinedProgress,
    *,
    is_reused: bool,
) -> Job:
    """Send the files that a job waits for, except those that another client sends, and return the job as it is then."""
    for number, (source, plan) in enumerate(plans):
        session = (AsyncSharedUpload if is_reused else AsyncPlannedUpload)(http, plan)
        with suppress(UploadTaken):
            await AsyncUploader(http, source, session, progress=partial(_report, progress, number)).run()
    if plans:
        with suppress(IngotError):  # A caller that may create jobs may not be allowed to read them.
            return await http.request("GET", url_path("jobs", job.id), Job)
    return job


def _report(progress: CombinedProgress, part: int, done: int, total: int) -> None:  # noqa: ARG001 - a ProgressCallback
    progress.report(part, done)


async def _upload_request(
    name: str, source: UploadSource, hashing: ProgressCallback, *, inline_bytes_left: int
) -> dict[str, Any]:
    """Return the description of a file for the server, with its bytes if they are few."""
    if source.size is None:
        raise InvalidInput(f"{name!r} can be read only once", hint="Store it in a file first.")
    digests = await compute_digests(source, hashing)
    request = {
        "name": name,
        "content_type": guess_content_type(name),
        "size": source.size,
        "blob_id": digests.blob_id,
        "sha256": digests.sha256,
    }
    if source.size <= min(inline_bytes_left, INLINE_BYTES_MAX):
        request["data"] = await asyncio.to_thread(source.read, 0, source.size)
    return request


async def store_large_payloads(http: AsyncHttp, bodies: list[dict[str, Any]]) -> None:
    """Store payloads that are too large for a request as blobs, and replace them by the blob IDs in `bodies`."""

    async def store(body: dict[str, Any]) -> None:
        body["payload_blob"] = await _store_payload(http, bytes(body["payload"]), body["type"])
        body["payload"] = NULL

    large_bodies = [body for body in bodies if is_large_payload(body["payload"])]
    if large_bodies:
        await async_for_each(store, large_bodies, limit=min(len(large_bodies), CONCURRENT_PAYLOADS_MAX))


async def _store_payload(http: AsyncHttp, text: Data, type: str) -> str:
    """Store the payload of a job of this type and return the blob ID. It needs only a grant to create such jobs."""
    with UploadSource(text) as source:
        digests = await compute_digests(source, None)
        request = {
            "size": source.size,
            "blob_id": digests.blob_id,
            "sha256": digests.sha256,
            "content_type": "application/json",
            "payload_of": type,
        }
        await AsyncUploader(http, source, AsyncNewUpload(http, request)).run()
    return digests.blob_id


async def signed_file_url(http: AsyncHttp, file: JobFile, *, seconds: int) -> str:
    """Return a URL from which a file can be read without credentials, for up to `seconds`."""
    query = {"seconds": seconds, "name": file.name, "content_type": file.content_type}
    return (await http.request("GET", url_path("blobs", file.blob_id, "url"), SignedUrl, query=query)).url
