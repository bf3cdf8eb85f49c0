"""Routes of files of jobs: for those who want work done, and for those who do it."""

from __future__ import annotations

from ingot.api.claims import require_job_access, tenant_scope, worker_scope
from ingot.api.downloads import URL_SECONDS, Downloads
from ingot.api.jobs import get_visible_job
from ingot.api.upload_urls import UploadUrls
from ingot.blobs.checks import digest, guess_content_type
from ingot.blobs.incoming import IncomingBlob, JobFileTarget
from ingot.blobs.model import UploadState
from ingot.blobs.ports import ObjectPart
from ingot.blobs.uploads import Uploads
from ingot.http.request import Request, Response
from ingot.http.routes import Granted, Route, routes_of
from ingot.jobs.checks import file_name
from ingot.jobs.files import CHECKPOINT_BYTES_MAX, CHECKPOINT_HINT, JobFile, RunningJob
from ingot.jobs.service import Jobs
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import SignPartsResponse, UploadPlan, UploadResponse
from ingot.wire.files import (
    BeginFileUploadRequest,
    CompleteFileUploadRequest,
    DownloadFileRequest,
    FileUrl,
    RenewFileUploadRequest,
    SignFilePartsRequest,
)


class FilesApi:
    """Files of jobs over HTTP. What an attempt reads and sends it asks for under its fence, when it needs it."""

    def __init__(self, jobs: Jobs, uploads: Uploads, downloads: Downloads, plans: UploadUrls) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._downloads = downloads
        self._upload_urls = plans

    def routes(self) -> list[Route]:
        """The routes of this room."""
        run = Granted("workers.run")
        route = routes_of("files")
        return [
            route("GET", "/jobs/{id}/files", self.list, Granted("jobs.read")),
            route("POST", "/jobs/{id}/downloads", self.download, run),
            route("POST", "/jobs/{id}/uploads", self.begin, run, status=201),
            route("POST", "/jobs/{id}/uploads/{upload}/parts", self.sign_parts, run),
            route("POST", "/jobs/{id}/uploads/{upload}/renew", self.renew, run),
            route("POST", "/jobs/{id}/uploads/{upload}/complete", self.complete, run, other_statuses=(202,)),
        ]

    async def list(self, call: Request, id: str) -> Page[JobFile]:
        """The files of a job: inputs, its payload when that is a blob, outputs, logs, and checkpoints."""
        await get_visible_job(self._jobs, call, id)
        return Page(items=[*await self._jobs.files(call.tenant, id)])

    async def download(self, call: Request, id: str, body: DownloadFileRequest) -> FileUrl:
        """An address where an attempt reads an input, its payload or a checkpoint, without a credential."""
        running = await self._get_running_job(call, id, body.fence)
        file, content = await self._jobs.open_file(
            id, body.fence, body.kind, body.name, tenant=running.tenant, worker=worker_scope(call)
        )
        signed = await self._downloads.signed_url(
            call, content, content_type=file.content_type, name=file.name, tenant=running.tenant
        )
        return FileUrl(
            url=signed.url,
            expires_in=signed.expires_in,
            blob_id=content.id,
            size=content.size,
            data=self._downloads.inline_bytes(content),
        )

    async def begin(self, call: Request, id: str, body: BeginFileUploadRequest) -> UploadPlan:
        """Begin the upload of a file of an attempt: an output, a checkpoint, or what it wrote. For this fence only.

        What comes with all of its data is done at once.
        """
        running = await self._get_running_job(call, id, body.fence)
        name = _file_name(body, running)
        _check_checkpoint_size(body)
        begun = await self._uploads.begin(
            IncomingBlob(
                tenant=running.tenant,
                owner=call.caller.principal,
                size=body.size,
                blob_id=body.blob_id,
                sha256=body.sha256,
                content_type=body.content_type or ("text/plain" if body.kind == "log" else guess_content_type(name)),
                owner_quota=call.caller.limits.quota_bytes,
            ),
            file=JobFileTarget(job_id=id, kind=body.kind, name=name, fence=body.fence),
            data=body.data,
        )
        return self._upload_urls.plan_upload(call, running.tenant, begun)

    async def sign_parts(self, call: Request, id: str, upload: str, body: SignFilePartsRequest) -> SignPartsResponse:
        """Addresses for parts of a file of an attempt that goes to a bucket in several."""
        running = await self._get_running_job(call, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        parts = [
            ObjectPart(number=one.number, size=one.size, sha256=digest(one.sha256, name="SHA-256"))
            for one in body.parts
        ]
        signed = await self._uploads.sign_parts(running.tenant, upload, parts)
        return SignPartsResponse(parts=signed, expires_in=URL_SECONDS)

    async def renew(self, call: Request, id: str, upload: str, body: RenewFileUploadRequest) -> UploadResponse:
        """How a file of an attempt goes on whose address has expired, and which of its parts are there."""
        running = await self._get_running_job(call, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        parts = await self._uploads.list_parts(running.tenant, upload)
        return self._upload_urls.describe_upload(
            call, running.tenant, await self._uploads.get_with_plan(running.tenant, upload), parts
        )

    async def complete(
        self, call: Request, id: str, upload: str, body: CompleteFileUploadRequest
    ) -> Response[UploadResponse]:
        """All bytes of a file are sent. An output is seen when its run succeeds, others at once. Large ones: 202."""
        running = await self._get_running_job(call, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        done = await self._uploads.complete(running.tenant, upload, blob_id=body.blob_id, sha256=body.sha256)
        status = 202 if done.upload.state is UploadState.VERIFYING else 200
        return Response(UploadResponse(upload=done.upload), status=status)

    async def _get_running_job(self, call: Request, job_id: str, fence: int) -> RunningJob:
        """The job, while it runs under this fence and is the caller's. Raises `JobNotFound` or `LeaseLost`."""
        await require_job_access(self._jobs, call, job_id)
        return await self._jobs.get_running_job(job_id, fence, tenant=tenant_scope(call), worker=worker_scope(call))


def _file_name(body: BeginFileUploadRequest, running: RunningJob) -> str:
    """The name of a file. What an attempt wrote goes by its number."""
    if body.kind == "log":
        return str(running.attempt)
    if body.name is None:
        raise InvalidInput("the name is missing", hint="Say how the file is called, as in report.pdf.")
    return file_name(body.name)


def _check_checkpoint_size(body: BeginFileUploadRequest) -> None:
    """Raise `InvalidInput` for a checkpoint that is larger than any is."""
    if body.kind == "checkpoint" and body.size > CHECKPOINT_BYTES_MAX:
        raise InvalidInput(
            f"a checkpoint has up to {CHECKPOINT_BYTES_MAX} bytes, not {body.size}", hint=CHECKPOINT_HINT
        )
