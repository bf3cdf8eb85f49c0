"""Routes of job files, for callers that created the job and for the attempt that runs."""

from __future__ import annotations

from ingot.api.blob_scopes import attempt_scope
from ingot.api.claims import hide_other_types, require_job_access, tenant_scope, worker_scope
from ingot.api.downloads import URL_SECONDS, Downloads
from ingot.api.jobs import get_visible_job
from ingot.api.upload_urls import UploadUrls
from ingot.blobs.checks import digest, guess_content_type
from ingot.blobs.incoming import IncomingBlob, JobFileTarget
from ingot.blobs.model import UploadState
from ingot.blobs.ports import ObjectPart
from ingot.blobs.uploads import Uploads
from ingot.http.request import Request, Response
from ingot.http.routes import Granted, Route, route_factory
from ingot.jobs.checks import file_name
from ingot.jobs.errors import LeaseLost
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
    """Routes of job files. An attempt requests URLs for its files with its fence, when it needs them."""

    def __init__(self, jobs: Jobs, uploads: Uploads, downloads: Downloads, upload_urls: UploadUrls) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._downloads = downloads
        self._upload_urls = upload_urls

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        run = Granted("workers.run")
        route = route_factory("files")
        return [
            route("GET", "/jobs/{id}/files", self.list, Granted("jobs.read")),
            route("POST", "/jobs/{id}/downloads", self.download, run),
            route("POST", "/jobs/{id}/uploads", self.begin, run, status=201),
            route("POST", "/jobs/{id}/uploads/{upload}/parts", self.sign_parts, run),
            route("POST", "/jobs/{id}/uploads/{upload}/renew", self.renew, run),
            route("POST", "/jobs/{id}/uploads/{upload}/complete", self.complete, run, other_statuses=(202,)),
        ]

    async def list(self, request: Request, id: str) -> Page[JobFile]:
        """List the files of a job: inputs, outputs, logs, checkpoints, and the payload if it is a blob."""
        await get_visible_job(self._jobs, request, id)
        return Page(items=[*await self._jobs.files(request.tenant, id)])

    async def download(self, request: Request, id: str, body: DownloadFileRequest) -> FileUrl:
        """Sign a URL at which an attempt downloads an input, its payload or a checkpoint."""
        running = await self._get_running_job(request, id, body.fence)
        file, content = await self._jobs.open_file(
            id, body.fence, body.kind, body.name, tenant=running.tenant, worker=worker_scope(request)
        )
        signed_url = await self._downloads.signed_url(
            request, content, content_type=file.content_type, name=file.name, tenant=running.tenant
        )
        return FileUrl(
            url=signed_url.url,
            expires_in=signed_url.expires_in,
            blob_id=content.id,
            size=content.size,
            data=self._downloads.inline_bytes(content),
        )

    async def begin(self, request: Request, id: str, body: BeginFileUploadRequest) -> UploadPlan:
        """Begin the upload of an output, a checkpoint or the log of an attempt.

        If the request contains all bytes, the upload is done at once.
        """
        running = await self._get_running_job(request, id, body.fence)
        name = _file_name(body, running)
        _check_checkpoint_size(body)
        upload = await self._uploads.begin(
            IncomingBlob(
                tenant=running.tenant,
                owner=request.caller.principal,
                size=body.size,
                blob_id=body.blob_id,
                sha256=body.sha256,
                content_type=body.content_type or ("text/plain" if body.kind == "log" else guess_content_type(name)),
                owner_quota=request.caller.limits.quota_bytes,
                scope=attempt_scope(id),
            ),
            file=JobFileTarget(job_id=id, kind=body.kind, name=name, fence=body.fence),
            data=body.data,
        )
        return self._upload_urls.plan_upload(request, running.tenant, upload)

    async def sign_parts(self, request: Request, id: str, upload: str, body: SignFilePartsRequest) -> SignPartsResponse:
        """Sign URLs for parts of an attempt's upload that goes to a bucket."""
        running = await self._get_running_job(request, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        parts = [
            ObjectPart(number=part.number, size=part.size, sha256=digest(part.sha256, name="SHA-256"))
            for part in body.parts
        ]
        signed_parts = await self._uploads.sign_parts(running.tenant, upload, parts)
        return SignPartsResponse(parts=signed_parts, expires_in=URL_SECONDS)

    async def renew(self, request: Request, id: str, upload: str, body: RenewFileUploadRequest) -> UploadResponse:
        """Sign a new URL to continue an attempt's upload, and list the parts that have arrived."""
        running = await self._get_running_job(request, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        parts = await self._uploads.list_parts(running.tenant, upload)
        return self._upload_urls.describe_upload(
            request, running.tenant, await self._uploads.get_with_plan(running.tenant, upload), parts
        )

    async def complete(
        self, request: Request, id: str, upload: str, body: CompleteFileUploadRequest
    ) -> Response[UploadResponse]:
        """Verify and store the file that was sent. With 202, a large file is still being verified.

        A log or checkpoint becomes visible at once, an output when its attempt succeeds.
        """
        running = await self._get_running_job(request, id, body.fence)
        await self._uploads.get_for_attempt(running.tenant, upload, job_id=id, fence=body.fence)
        finished = await self._uploads.complete(running.tenant, upload, blob_id=body.blob_id, sha256=body.sha256)
        status = 202 if finished.upload.state is UploadState.VERIFYING else 200
        return Response(UploadResponse(upload=finished.upload), status=status)

    async def _get_running_job(self, request: Request, job_id: str, fence: int) -> RunningJob:
        """Return the job if it runs under this fence for this caller. Raises `JobNotFound` or `LeaseLost`."""
        await require_job_access(self._jobs, request, job_id)
        try:
            return await self._jobs.get_running_job(
                job_id, fence, tenant=tenant_scope(request), worker=worker_scope(request)
            )
        except LeaseLost as error:
            raise await hide_other_types(self._jobs, request, job_id, error) from None


def _file_name(body: BeginFileUploadRequest, running: RunningJob) -> str:
    """Return the name of the file. A log has the number of its attempt as its name."""
    if body.kind == "log":
        return str(running.attempt)
    if body.name is None:
        raise InvalidInput("the name is missing", hint="Set name to the name of the file, such as report.pdf.")
    return file_name(body.name)


def _check_checkpoint_size(body: BeginFileUploadRequest) -> None:
    """Raise `InvalidInput` for a checkpoint that is too large."""
    if body.kind == "checkpoint" and body.size > CHECKPOINT_BYTES_MAX:
        raise InvalidInput(
            f"a checkpoint must have at most {CHECKPOINT_BYTES_MAX} bytes, got {body.size}", hint=CHECKPOINT_HINT
        )
