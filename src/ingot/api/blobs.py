"""Routes of blobs and of uploads."""

from __future__ import annotations

from typing import Any, Final

from ingot.api.downloads import URL_SECONDS, Downloads
from ingot.api.plans import SENDING, Plans
from ingot.blobs import checks
from ingot.blobs.arrivals import Arrival
from ingot.blobs.collector import Collector
from ingot.blobs.errors import BlobNotFound, UploadNotFound
from ingot.blobs.model import Collected, Reference, Sight, Upload, UploadState
from ingot.blobs.ports import Part
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.http.call import Answer, Body, Bytes, Call
from ingot.http.table import Granted, Route, Signed, routes_of
from ingot.identity.credentials import Caller
from ingot.identity.grants import names_below
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX, job_type
from ingot.jobs.errors import PayloadTooLarge
from ingot.jobs.service import Jobs
from ingot.kernel.content_types import BINARY
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import (
    BytesQuery,
    CollectOrder,
    CompleteOrder,
    PartsAnswer,
    SignedUrl,
    UploadAnswer,
    UploadBytesQuery,
    UploadOrder,
    UploadPartsOrder,
    UploadPlan,
    UploadQuery,
    UrlQuery,
    Verified,
    Why,
)

OFFSET: Final = "upload-offset"


class BlobsApi:
    """Blobs over HTTP."""

    def __init__(
        self,
        blobs: Blobs,
        uploads: Uploads,
        downloads: Downloads,
        plans: Plans,
        collector: Collector,
        scrub: Scrub,
        *,
        jobs: Jobs,
    ) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._downloads = downloads
        self._plans = plans
        self._collector = collector
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
            route("GET", "/blobs/uploads/{id}/bytes", self.offset, Signed(SENDING)),
            route("PUT", "/blobs/uploads/{id}/bytes", self.receive, Signed(SENDING), **sends),
            route("PATCH", "/blobs/uploads/{id}/bytes", self.receive_more, Signed(SENDING), **sends),
            route("GET", "/blobs/{id}", self.get, see, other_statuses=(206, 304, 307)),
            route("GET", "/blobs/{id}/bytes", self.get_signed, Signed(), other_statuses=(206, 304)),
            route("GET", "/blobs/{id}/url", self.url, see),
            route("GET", "/blobs/{id}/references", self.why, see),
            route("POST", "/blobs/{id}/verify", self.verify, see, waits=True),  # It may take hours.
            route("POST", "/blobs/collect", self.collect, Granted("admin.blobs")),
        ]

    # -- uploads --------------------------------------------------------------------------------------------

    async def begin(self, call: Call, body: UploadOrder) -> UploadPlan:
        """Begin an upload: the answer says where its bytes are sent. What the tenant has already is done at once."""
        _expect_begun(call, body)
        begun = await self._uploads.begin(
            Arrival(
                tenant=call.tenant,
                owner=call.caller.name,
                size=body.size,
                blob_id=body.blob_id,
                sha256=body.sha256,
                content_type=body.content_type or checks.guess_type(body.original_name or body.key or ""),
                original_name=body.original_name,
                owner_quota=call.caller.limits.quota_bytes,
            ),
            key=body.key,
            if_match=checks.if_match(body.if_match),
        )
        return self._plans.of(call, call.tenant, begun)

    async def get_upload(self, call: Call, id: str, query: UploadQuery) -> UploadAnswer:
        """How an upload stands, which of its parts are there, and a new address to go on at with it."""
        await self._own(call, id, query.blob_id)
        parts = await self._uploads.parts(call.tenant, id)
        return self._plans.again(call, call.tenant, await self._uploads.again(call.tenant, id), parts)

    async def give_up(self, call: Call, id: str) -> None:
        """Give up an upload that is not done."""
        await self._own(call, id)
        await self._uploads.give_up(call.tenant, id)

    async def sign_parts(self, call: Call, id: str, body: UploadPartsOrder) -> PartsAnswer:
        """Addresses for parts of an upload that goes to a bucket in several."""
        await self._own(call, id, body.blob_id)
        parts = [
            Part(number=one.number, size=one.size, sha256=checks.digest(one.sha256, what="SHA-256"))
            for one in body.parts
        ]
        return PartsAnswer(parts=await self._uploads.sign_parts(call.tenant, id, parts), expires_in=URL_SECONDS)

    async def complete(self, call: Call, id: str, body: CompleteOrder) -> Answer[UploadAnswer]:
        """All bytes are sent: they are read, and are a blob when they are what was announced. Large ones later: 202."""
        await self._own(call, id, body.blob_id)
        done = await self._uploads.complete(call.tenant, id, blob_id=body.blob_id, sha256=body.sha256)
        status = 202 if done.upload.state is UploadState.VERIFYING else 200
        return Answer(UploadAnswer(upload=done.upload, key=done.key), status=status)

    async def offset(self, call: Call, id: str, query: UploadBytesQuery) -> Answer[Upload]:  # noqa: ARG002 - every handler gets its call
        """How far an upload is, for one who goes on with it; whoever sent before is sent away."""
        return _told(await self._uploads.offset(query.tenant, id))

    async def receive(self, call: Call, id: str, query: UploadBytesQuery, body: Body) -> Answer[Upload]:
        """The bytes of an upload, from its beginning."""
        return await self._received(call, id, query, body)

    async def receive_more(self, call: Call, id: str, query: UploadBytesQuery, body: Body) -> Answer[Upload]:
        """More bytes of an upload, from the header `Upload-Offset` on."""
        if not call.headers.has(OFFSET):
            raise InvalidInput("the header Upload-Offset is missing", hint="HEAD the same address to learn it.")
        return await self._received(call, id, query, body)

    async def _received(self, call: Call, id: str, query: UploadBytesQuery, body: Body) -> Answer[Upload]:
        call.headers.expect_once((OFFSET,))
        said = call.headers.get(OFFSET) if call.headers.has(OFFSET) else "0"
        if said is None or not said.isascii() or not said.isdigit() or len(said) > 19:
            raise InvalidInput("the header Upload-Offset is not a whole number")
        return _told(await self._uploads.receive(query.tenant, id, int(said), body.parts()))

    async def _own(self, call: Call, id: str, blob_id: str | None = None) -> Upload:
        """The upload, for who began it or may write what it is for. Raises `UploadNotFound`."""
        upload = await self._uploads.get(call.tenant, id)
        if not await self._may_send(call, upload, blob_id):
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return upload

    async def _may_send(self, call: Call, upload: Upload, blob_id: str | None) -> bool:
        """Who made a job, and may make such jobs, sends its inputs; or who asks for the same, and has the file too.

        That one is known by the blob that was announced, which nobody is told. What an attempt makes comes another way.
        """
        own = upload.owner == call.caller.name
        if upload.job_id is None:
            return own or call.caller.may("blobs.write", "*" if upload.key is None else f"keys/{upload.key}")
        if upload.file != "input" or not (own or (blob_id is not None and blob_id == upload.blob_id)):
            return False
        job = await self._jobs.get(call.tenant, upload.job_id)
        return call.caller.may("jobs.create", f"jobs/{job.type}")

    # -- blobs ----------------------------------------------------------------------------------------------

    async def get(self, call: Call, id: str) -> Bytes | Answer[bytes]:
        """The bytes of a blob that something of this tenant refers to."""
        opened, references = await self._blobs.open_blob(call.tenant, id, _sight(call.caller))
        _expect_seen(call.caller, id, references)
        return await self._downloads.answer(call, opened, content_type=BINARY, name=id)

    async def get_signed(self, call: Call, id: str, query: BytesQuery) -> Bytes | Answer[bytes]:
        """The bytes of a blob, for whoever has this address."""
        opened, _ = await self._blobs.open_blob(query.tenant, id)
        return self._downloads.from_us(call, opened, content_type=query.type, name=query.name)

    async def url(self, call: Call, id: str, query: UrlQuery) -> SignedUrl:
        """An address where the blob can be read without a credential, for a while."""
        content, references = await self._blobs.references(call.tenant, id, _sight(call.caller))
        _expect_seen(call.caller, id, references)
        name = checks.file_name(query.name or id, what="name")
        kind = checks.content_type(query.content_type or checks.guess_type(name))
        return await self._downloads.url(call, content, content_type=kind, name=name, seconds=query.seconds)

    async def why(self, call: Call, id: str) -> Why:
        """Why a blob is kept: what in this tenant refers to it."""
        content, references = await self._blobs.references(call.tenant, id, _sight(call.caller))
        seen = _expect_seen(call.caller, id, references)
        return Why(blob_id=id, size=content.size, sha256=content.sha256, damaged=content.damaged, references=seen)

    async def verify(self, call: Call, id: str) -> Verified:
        """Read a blob whole, and tell whether its bytes are what they were."""
        content, references = await self._blobs.references(call.tenant, id, _sight(call.caller))
        _expect_seen(call.caller, id, references)
        return Verified(blob_id=id, whole=await self._scrub.look_at(content))

    async def collect(self, call: Call, body: CollectOrder) -> Collected:
        """A round of the collector now, or what it would take away."""
        call.expect_operator("collects")
        return await self._collector.preview() if body.dry_run else await self._collector.run_once()


def _expect_begun(call: Call, body: UploadOrder) -> None:
    """A payload is sent by who may make such jobs, and is no more than one. Raises `Forbidden`, `PayloadTooLarge`."""
    if body.payload_of is None:
        call.expect("blobs.write", "*" if body.key is None else f"keys/{checks.key(body.key)}")
        return
    call.expect("jobs.create", f"jobs/{job_type(body.payload_of)}")
    if body.key is not None:
        raise InvalidInput("a payload has no key", hint="Leave out key, or payload_of.")
    if body.size > PAYLOAD_BLOB_BYTES_MAX:
        raise PayloadTooLarge(f"the payload has {body.size} bytes; the most is {PAYLOAD_BLOB_BYTES_MAX}")


def _told(upload: Upload) -> Answer[Upload]:
    return Answer(upload, headers={OFFSET: str(upload.received), "cache-control": "no-store"})


def _sight(caller: Caller) -> Sight:
    """What the engine is asked for: of many references, those that the caller may know of need not be the first."""
    return Sight(
        keys=names_below("keys", caller.grants, "blobs.read"),
        uploads=caller.may("blobs.read"),
        types=names_below("jobs", caller.grants, "jobs.read"),
    )


def _expect_seen(caller: Caller, id: str, references: list[Reference]) -> list[Reference]:
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
