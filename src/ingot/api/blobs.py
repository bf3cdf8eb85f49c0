"""Routes of blobs and uploads."""

from __future__ import annotations

from typing import Any, Final

from ingot.api.blob_scopes import readable_scope, reference_scope
from ingot.api.downloads import URL_SECONDS, Downloads
from ingot.api.upload_urls import UPLOAD_PURPOSE, UploadUrls
from ingot.blobs import checks
from ingot.blobs.errors import BlobNotFound, UploadNotFound
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import BlobCollectionResult, Reference, Upload, UploadState
from ingot.blobs.ports import ObjectPart
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.http.request import BytesResponse, Request, RequestBody, Response
from ingot.http.routes import Granted, Route, Signed, route_factory
from ingot.identity.credentials import Caller
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX, job_type
from ingot.jobs.errors import PayloadTooLarge
from ingot.jobs.service import Jobs
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import (
    BeginUploadRequest,
    BlobReferences,
    BlobUrlQuery,
    CollectBlobsRequest,
    CompleteUploadRequest,
    SignedDownloadQuery,
    SignedUploadQuery,
    SignedUrl,
    SignPartsResponse,
    SignUploadPartsRequest,
    UploadPlan,
    UploadQuery,
    UploadResponse,
    VerifyBlobResponse,
)

OFFSET_HEADER: Final = "upload-offset"


class BlobsApi:
    """Routes of blobs and uploads."""

    def __init__(
        self,
        blobs: Blobs,
        uploads: Uploads,
        downloads: Downloads,
        upload_urls: UploadUrls,
        collector: GarbageCollector,
        scrub: Scrub,
        *,
        jobs: Jobs,
    ) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._downloads = downloads
        self._upload_urls = upload_urls
        self._garbage_collector = collector
        self._scrub = scrub
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        read = Granted("blobs.read", or_action="jobs.read")  # A blob may be a file of a job.
        upload = Granted("blobs.write", or_action="jobs.create")  # The blob may be an input or a payload of a job.
        receives_bytes: dict[str, Any] = {"body_bytes_max": None, "headers": ("Upload-Offset",)}
        route = route_factory("blobs")
        return [
            route("POST", "/blobs/uploads", self.begin, upload, status=201),
            route("GET", "/blobs/uploads/{id}", self.get_upload, upload),
            route("DELETE", "/blobs/uploads/{id}", self.give_up, upload, status=204),
            route("POST", "/blobs/uploads/{id}/parts", self.sign_parts, upload),
            route("POST", "/blobs/uploads/{id}/complete", self.complete, upload, other_statuses=(202,)),
            route("GET", "/blobs/uploads/{id}/bytes", self.offset, Signed(UPLOAD_PURPOSE)),
            route("PUT", "/blobs/uploads/{id}/bytes", self.receive, Signed(UPLOAD_PURPOSE), **receives_bytes),
            route("PATCH", "/blobs/uploads/{id}/bytes", self.receive_more, Signed(UPLOAD_PURPOSE), **receives_bytes),
            route("GET", "/blobs/{id}", self.get, read, other_statuses=(206, 304, 307)),
            route("GET", "/blobs/{id}/bytes", self.get_signed, Signed(), other_statuses=(206, 304)),
            route("GET", "/blobs/{id}/url", self.url, read),
            route("GET", "/blobs/{id}/references", self.why, read),
            route("POST", "/blobs/{id}/verify", self.verify, read, waits=True),  # Reading a large blob may take hours.
            route("POST", "/blobs/collect", self.collect, Granted("admin.blobs")),
        ]

    # -- uploads --------------------------------------------------------------------------------------------

    async def begin(self, request: Request, body: BeginUploadRequest) -> UploadPlan:
        """Begin an upload. The response contains the URL for the bytes, unless the caller can already read the blob."""
        _require_upload_grant(request, body)
        upload = await self._uploads.begin(
            IncomingBlob(
                tenant=request.tenant,
                owner=request.caller.principal,
                size=body.size,
                blob_id=body.blob_id,
                sha256=body.sha256,
                content_type=body.content_type or checks.guess_content_type(body.original_name or body.key or ""),
                original_name=body.original_name,
                owner_quota=request.caller.limits.quota_bytes,
                scope=reference_scope(request.caller),
            ),
            key=body.key,
            if_match=checks.if_match(body.if_match),
        )
        return self._upload_urls.plan_upload(request, request.tenant, upload)

    async def get_upload(self, request: Request, id: str, query: UploadQuery) -> UploadResponse:
        """Return the state of an upload, the parts that have arrived, and a new URL to continue it."""
        await self._get_permitted_upload(request, id, query.blob_id)
        parts = await self._uploads.list_parts(request.tenant, id)
        return self._upload_urls.describe_upload(
            request, request.tenant, await self._uploads.get_with_plan(request.tenant, id), parts
        )

    async def give_up(self, request: Request, id: str) -> None:
        """Cancel an upload that is not done."""
        await self._get_permitted_upload(request, id)
        await self._uploads.cancel(request.tenant, id)

    async def sign_parts(self, request: Request, id: str, body: SignUploadPartsRequest) -> SignPartsResponse:
        """Sign URLs for parts of an upload that goes to a bucket."""
        await self._get_permitted_upload(request, id, body.blob_id)
        parts = [
            ObjectPart(number=part.number, size=part.size, sha256=checks.digest(part.sha256, name="SHA-256"))
            for part in body.parts
        ]
        return SignPartsResponse(
            parts=await self._uploads.sign_parts(request.tenant, id, parts), expires_in=URL_SECONDS
        )

    async def complete(self, request: Request, id: str, body: CompleteUploadRequest) -> Response[UploadResponse]:
        """Verify the bytes that were sent and store the blob. With 202, a large blob is still being verified."""
        await self._get_permitted_upload(request, id, body.blob_id)
        finished = await self._uploads.complete(request.tenant, id, blob_id=body.blob_id, sha256=body.sha256)
        status = 202 if finished.upload.state is UploadState.VERIFYING else 200
        return Response(UploadResponse(upload=finished.upload, key=finished.key), status=status)

    async def offset(self, request: Request, id: str, query: SignedUploadQuery) -> Response[Upload]:  # noqa: ARG002 - handlers share one signature
        """Return how many bytes of an upload have arrived, and stop any other client that is sending."""
        return _upload_response(await self._uploads.take_over(query.tenant, id))

    async def receive(self, request: Request, id: str, query: SignedUploadQuery, body: RequestBody) -> Response[Upload]:
        """Write the bytes of an upload from the beginning."""
        return await self._receive_bytes(request, id, query, body)

    async def receive_more(
        self, request: Request, id: str, query: SignedUploadQuery, body: RequestBody
    ) -> Response[Upload]:
        """Write more bytes of an upload, starting at `Upload-Offset`."""
        if not request.headers.has(OFFSET_HEADER):
            raise InvalidInput("the header Upload-Offset is missing", hint="Send HEAD to the same URL to get it.")
        return await self._receive_bytes(request, id, query, body)

    async def _receive_bytes(
        self, request: Request, id: str, query: SignedUploadQuery, body: RequestBody
    ) -> Response[Upload]:
        request.headers.require_unique((OFFSET_HEADER,))
        offset = request.headers.get(OFFSET_HEADER) if request.headers.has(OFFSET_HEADER) else "0"
        if offset is None or not offset.isascii() or not offset.isdigit() or len(offset) > 19:
            raise InvalidInput("the header Upload-Offset is not a whole number")
        return _upload_response(await self._uploads.receive(query.tenant, id, int(offset), body.chunks()))

    async def _get_permitted_upload(self, request: Request, id: str, blob_id: str | None = None) -> Upload:
        """Return an upload that the caller began or may write to. Raises `UploadNotFound`."""
        upload = await self._uploads.get(request.tenant, id)
        if not await self._may_send(request, upload, blob_id):
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return upload

    async def _may_send(self, request: Request, upload: Upload, blob_id: str | None) -> bool:
        """Return whether the caller may continue an upload.

        An input can be sent by the caller that created the job, and by a caller that may read such jobs and announces
        the same blob ID. Both need a grant to create such jobs. Files of an attempt are uploaded through the routes in
        `files.py`.
        """
        own = upload.owner == request.caller.principal
        if upload.job_id is None:
            return own or request.caller.may("blobs.write", "*" if upload.key is None else f"keys/{upload.key}")
        if upload.file != "input" or not (own or (blob_id is not None and blob_id == upload.blob_id)):
            return False
        job = await self._jobs.get(request.tenant, upload.job_id)
        actions = ("jobs.create",) if own else ("jobs.create", "jobs.read")
        return all(request.caller.may(action, f"jobs/{job.type}") for action in actions)

    # -- blobs ----------------------------------------------------------------------------------------------

    async def get(self, request: Request, id: str) -> BytesResponse | Response[bytes]:
        """Download a blob that the tenant has a reference to."""
        opened, references = await self._blobs.open_blob(request.tenant, id, readable_scope(request.caller))
        _visible_references(request.caller, id, references)
        return await self._downloads.respond(request, opened, content_type=BINARY_CONTENT_TYPE, name=id)

    async def get_signed(
        self, request: Request, id: str, query: SignedDownloadQuery
    ) -> BytesResponse | Response[bytes]:
        """Download a blob with a signed URL."""
        opened, _ = await self._blobs.open_blob(query.tenant, id)
        return self._downloads.respond_with_bytes(request, opened, content_type=query.type, name=query.name)

    async def url(self, request: Request, id: str, query: BlobUrlQuery) -> SignedUrl:
        """Sign a URL at which the blob can be downloaded without a credential."""
        content, references = await self._blobs.references(request.tenant, id, readable_scope(request.caller))
        _visible_references(request.caller, id, references)
        name = checks.file_name(query.name or id, name="name")
        kind = checks.content_type(query.content_type or checks.guess_content_type(name))
        return await self._downloads.signed_url(request, content, content_type=kind, name=name, seconds=query.seconds)

    async def why(self, request: Request, id: str) -> BlobReferences:
        """List the references in this tenant that keep a blob."""
        content, references = await self._blobs.references(request.tenant, id, readable_scope(request.caller))
        visible = _visible_references(request.caller, id, references)
        return BlobReferences(
            blob_id=id, size=content.size, sha256=content.sha256, damaged=content.damaged, references=visible
        )

    async def verify(self, request: Request, id: str) -> VerifyBlobResponse:
        """Read all bytes of a blob and compare them with its digests."""
        content, references = await self._blobs.references(request.tenant, id, readable_scope(request.caller))
        _visible_references(request.caller, id, references)
        return VerifyBlobResponse(blob_id=id, whole=await self._scrub.scrub_blob(content))

    async def collect(self, request: Request, body: CollectBlobsRequest) -> BlobCollectionResult:
        """Run one round of the garbage collector, or preview it."""
        request.require_operator("can run the garbage collector")
        collector = self._garbage_collector
        return await (collector.preview(now=body.now) if body.dry_run else collector.collect(now=body.now))


def _require_upload_grant(request: Request, body: BeginUploadRequest) -> None:
    """Check that the caller may begin this upload.

    A payload needs a grant to create such jobs, and a limited size. Raises `Forbidden` or `PayloadTooLarge`.
    """
    if body.payload_of is None:
        request.require("blobs.write", "*" if body.key is None else f"keys/{checks.key(body.key)}")
        return
    request.require("jobs.create", f"jobs/{job_type(body.payload_of)}")
    if body.key is not None:
        raise InvalidInput("key and payload_of were both set", hint="Leave out one of them: a payload has no key.")
    if body.size > PAYLOAD_BLOB_BYTES_MAX:
        raise PayloadTooLarge(f"the payload must have at most {PAYLOAD_BLOB_BYTES_MAX} bytes, got {body.size}")


def _upload_response(upload: Upload) -> Response[Upload]:
    return Response(upload, headers={OFFSET_HEADER: str(upload.received)})


def _visible_references(caller: Caller, id: str, references: list[Reference]) -> list[Reference]:
    """Return the references that the caller may see. Raises `BlobNotFound` if there are none."""
    visible = [reference for reference in references if _may_see(caller, reference)]
    if not visible:
        raise BlobNotFound(f"there is no blob {id[:64]!r} in this tenant")
    return visible


def _may_see(caller: Caller, reference: Reference) -> bool:
    if reference.kind == "key":
        return caller.may("blobs.read", f"keys/{reference.name}")
    if reference.kind == "upload":
        return caller.may("blobs.read")
    return caller.may("jobs.read", f"jobs/{reference.job_type}")
