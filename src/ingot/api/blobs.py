"""Routes of blobs and of uploads."""

from __future__ import annotations

from typing import Any, Final

from ingot.api.downloads import URL_SECONDS, Downloads
from ingot.api.upload_urls import UPLOAD_PURPOSE, UploadUrls
from ingot.blobs import checks
from ingot.blobs.errors import BlobNotFound, UploadNotFound
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import BlobCollectionResult, BlobScope, Reference, Upload, UploadState
from ingot.blobs.ports import ObjectPart
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.http.request import BytesResponse, Request, RequestBody, Response
from ingot.http.routes import Granted, Route, Signed, routes_of
from ingot.identity.credentials import Caller
from ingot.identity.grants import allowed_prefixes
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
    """Blobs over HTTP."""

    def __init__(
        self,
        blobs: Blobs,
        uploads: Uploads,
        downloads: Downloads,
        plans: UploadUrls,
        collector: GarbageCollector,
        scrub: Scrub,
        *,
        jobs: Jobs,
    ) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._downloads = downloads
        self._upload_urls = plans
        self._garbage_collector = collector
        self._scrub = scrub
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """The routes of this room."""
        see = Granted("blobs.read", or_action="jobs.read")  # A blob may be a file of a job.
        send = Granted("blobs.write", or_action="jobs.create")  # It may be for an input or a payload of a job.
        sends: dict[str, Any] = {"body_bytes_max": None, "headers": ("Upload-Offset",)}
        route = routes_of("blobs")
        return [
            route("POST", "/blobs/uploads", self.begin, send, status=201),
            route("GET", "/blobs/uploads/{id}", self.get_upload, send),
            route("DELETE", "/blobs/uploads/{id}", self.give_up, send, status=204),
            route("POST", "/blobs/uploads/{id}/parts", self.sign_parts, send),
            route("POST", "/blobs/uploads/{id}/complete", self.complete, send, other_statuses=(202,)),
            route("GET", "/blobs/uploads/{id}/bytes", self.offset, Signed(UPLOAD_PURPOSE)),
            route("PUT", "/blobs/uploads/{id}/bytes", self.receive, Signed(UPLOAD_PURPOSE), **sends),
            route("PATCH", "/blobs/uploads/{id}/bytes", self.receive_more, Signed(UPLOAD_PURPOSE), **sends),
            route("GET", "/blobs/{id}", self.get, see, other_statuses=(206, 304, 307)),
            route("GET", "/blobs/{id}/bytes", self.get_signed, Signed(), other_statuses=(206, 304)),
            route("GET", "/blobs/{id}/url", self.url, see),
            route("GET", "/blobs/{id}/references", self.why, see),
            route("POST", "/blobs/{id}/verify", self.verify, see, waits=True),  # It may take hours.
            route("POST", "/blobs/collect", self.collect, Granted("admin.blobs")),
        ]

    # -- uploads --------------------------------------------------------------------------------------------

    async def begin(self, call: Request, body: BeginUploadRequest) -> UploadPlan:
        """Begin an upload: the answer says where its bytes are sent. What the tenant has already is done at once."""
        _require_upload_grant(call, body)
        begun = await self._uploads.begin(
            IncomingBlob(
                tenant=call.tenant,
                owner=call.caller.principal,
                size=body.size,
                blob_id=body.blob_id,
                sha256=body.sha256,
                content_type=body.content_type or checks.guess_content_type(body.original_name or body.key or ""),
                original_name=body.original_name,
                owner_quota=call.caller.limits.quota_bytes,
            ),
            key=body.key,
            if_match=checks.if_match(body.if_match),
        )
        return self._upload_urls.plan_upload(call, call.tenant, begun)

    async def get_upload(self, call: Request, id: str, query: UploadQuery) -> UploadResponse:
        """How an upload stands, which of its parts are there, and a new address to go on at with it."""
        await self._get_permitted_upload(call, id, query.blob_id)
        parts = await self._uploads.list_parts(call.tenant, id)
        return self._upload_urls.describe_upload(
            call, call.tenant, await self._uploads.get_with_plan(call.tenant, id), parts
        )

    async def give_up(self, call: Request, id: str) -> None:
        """Give up an upload that is not done."""
        await self._get_permitted_upload(call, id)
        await self._uploads.cancel(call.tenant, id)

    async def sign_parts(self, call: Request, id: str, body: SignUploadPartsRequest) -> SignPartsResponse:
        """Addresses for parts of an upload that goes to a bucket in several."""
        await self._get_permitted_upload(call, id, body.blob_id)
        parts = [
            ObjectPart(number=one.number, size=one.size, sha256=checks.digest(one.sha256, name="SHA-256"))
            for one in body.parts
        ]
        return SignPartsResponse(parts=await self._uploads.sign_parts(call.tenant, id, parts), expires_in=URL_SECONDS)

    async def complete(self, call: Request, id: str, body: CompleteUploadRequest) -> Response[UploadResponse]:
        """All bytes are sent: they are read, and are a blob when they are what was announced. Large ones later: 202."""
        await self._get_permitted_upload(call, id, body.blob_id)
        done = await self._uploads.complete(call.tenant, id, blob_id=body.blob_id, sha256=body.sha256)
        status = 202 if done.upload.state is UploadState.VERIFYING else 200
        return Response(UploadResponse(upload=done.upload, key=done.key), status=status)

    async def offset(self, call: Request, id: str, query: SignedUploadQuery) -> Response[Upload]:  # noqa: ARG002 - every handler gets its call
        """How far an upload is, for one who goes on with it; whoever sent before is sent away."""
        return _upload_response(await self._uploads.take_over(query.tenant, id))

    async def receive(self, call: Request, id: str, query: SignedUploadQuery, body: RequestBody) -> Response[Upload]:
        """The bytes of an upload, from its beginning."""
        return await self._receive_bytes(call, id, query, body)

    async def receive_more(
        self, call: Request, id: str, query: SignedUploadQuery, body: RequestBody
    ) -> Response[Upload]:
        """More bytes of an upload, from the header `Upload-Offset` on."""
        if not call.headers.has(OFFSET_HEADER):
            raise InvalidInput("the header Upload-Offset is missing", hint="HEAD the same address to learn it.")
        return await self._receive_bytes(call, id, query, body)

    async def _receive_bytes(
        self, call: Request, id: str, query: SignedUploadQuery, body: RequestBody
    ) -> Response[Upload]:
        call.headers.require_unique((OFFSET_HEADER,))
        said = call.headers.get(OFFSET_HEADER) if call.headers.has(OFFSET_HEADER) else "0"
        if said is None or not said.isascii() or not said.isdigit() or len(said) > 19:
            raise InvalidInput("the header Upload-Offset is not a whole number")
        return _upload_response(await self._uploads.receive(query.tenant, id, int(said), body.chunks()))

    async def _get_permitted_upload(self, call: Request, id: str, blob_id: str | None = None) -> Upload:
        """The upload, for who began it or may write what it is for. Raises `UploadNotFound`."""
        upload = await self._uploads.get(call.tenant, id)
        if not await self._may_send(call, upload, blob_id):
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return upload

    async def _may_send(self, call: Request, upload: Upload, blob_id: str | None) -> bool:
        """Who made a job, and may make such jobs, sends its inputs; or who asks for the same, and has the file too.

        That one is known by the blob that was announced, which nobody is told. What an attempt makes comes another way.
        """
        own = upload.owner == call.caller.principal
        if upload.job_id is None:
            return own or call.caller.may("blobs.write", "*" if upload.key is None else f"keys/{upload.key}")
        if upload.file != "input" or not (own or (blob_id is not None and blob_id == upload.blob_id)):
            return False
        job = await self._jobs.get(call.tenant, upload.job_id)
        return call.caller.may("jobs.create", f"jobs/{job.type}")

    # -- blobs ----------------------------------------------------------------------------------------------

    async def get(self, call: Request, id: str) -> BytesResponse | Response[bytes]:
        """The bytes of a blob that something of this tenant refers to."""
        opened, references = await self._blobs.open_blob(call.tenant, id, _blob_scope(call.caller))
        _visible_references(call.caller, id, references)
        return await self._downloads.respond(call, opened, content_type=BINARY_CONTENT_TYPE, name=id)

    async def get_signed(self, call: Request, id: str, query: SignedDownloadQuery) -> BytesResponse | Response[bytes]:
        """The bytes of a blob, for whoever has this address."""
        opened, _ = await self._blobs.open_blob(query.tenant, id)
        return self._downloads.respond_with_bytes(call, opened, content_type=query.type, name=query.name)

    async def url(self, call: Request, id: str, query: BlobUrlQuery) -> SignedUrl:
        """An address where the blob can be read without a credential, for a while."""
        content, references = await self._blobs.references(call.tenant, id, _blob_scope(call.caller))
        _visible_references(call.caller, id, references)
        name = checks.file_name(query.name or id, name="name")
        kind = checks.content_type(query.content_type or checks.guess_content_type(name))
        return await self._downloads.signed_url(call, content, content_type=kind, name=name, seconds=query.seconds)

    async def why(self, call: Request, id: str) -> BlobReferences:
        """Why a blob is kept: what in this tenant refers to it."""
        content, references = await self._blobs.references(call.tenant, id, _blob_scope(call.caller))
        seen = _visible_references(call.caller, id, references)
        return BlobReferences(
            blob_id=id, size=content.size, sha256=content.sha256, damaged=content.damaged, references=seen
        )

    async def verify(self, call: Request, id: str) -> VerifyBlobResponse:
        """Read a blob whole, and tell whether its bytes are what they were."""
        content, references = await self._blobs.references(call.tenant, id, _blob_scope(call.caller))
        _visible_references(call.caller, id, references)
        return VerifyBlobResponse(blob_id=id, whole=await self._scrub.scrub_blob(content))

    async def collect(self, call: Request, body: CollectBlobsRequest) -> BlobCollectionResult:
        """A round of the collector now, or what it would take away."""
        call.require_operator("collects")
        return await self._garbage_collector.preview() if body.dry_run else await self._garbage_collector.run_once()


def _require_upload_grant(call: Request, body: BeginUploadRequest) -> None:
    """A payload is sent by who may make such jobs, and is no more than one. Raises `Forbidden`, `PayloadTooLarge`."""
    if body.payload_of is None:
        call.require("blobs.write", "*" if body.key is None else f"keys/{checks.key(body.key)}")
        return
    call.require("jobs.create", f"jobs/{job_type(body.payload_of)}")
    if body.key is not None:
        raise InvalidInput("a payload has no key", hint="Leave out key, or payload_of.")
    if body.size > PAYLOAD_BLOB_BYTES_MAX:
        raise PayloadTooLarge(f"the payload has {body.size} bytes; the most is {PAYLOAD_BLOB_BYTES_MAX}")


def _upload_response(upload: Upload) -> Response[Upload]:
    return Response(upload, headers={OFFSET_HEADER: str(upload.received), "cache-control": "no-store"})


def _blob_scope(caller: Caller) -> BlobScope:
    """What the engine is asked for: of many references, those that the caller may know of need not be the first."""
    return BlobScope(
        keys=allowed_prefixes("keys", caller.grants, "blobs.read"),
        uploads=caller.may("blobs.read"),
        types=allowed_prefixes("jobs", caller.grants, "jobs.read"),
    )


def _visible_references(caller: Caller, id: str, references: list[Reference]) -> list[Reference]:
    """Those of the references that the caller may know of. Raises `BlobNotFound` when there are none."""
    seen = [one for one in references if _may_see(caller, one)]
    if not seen:
        raise BlobNotFound(f"there is no blob {id[:64]!r} here")
    return seen


def _may_see(caller: Caller, reference: Reference) -> bool:
    if reference.kind == "key":
        return caller.may("blobs.read", f"keys/{reference.name}")
    if reference.kind == "upload":
        return caller.may("blobs.read")
    return caller.may("jobs.read", f"jobs/{reference.job_type}")
