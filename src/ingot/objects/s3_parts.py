"""Objects that go to a bucket in parts, each with its own digest, and are joined there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ingot.blobs.errors import UploadIncomplete
from ingot.blobs.ports import ObjectPart, SignedPart
from ingot.kernel.errors import StoreError
from ingot.objects.s3_requests import BucketClient

PARTS_MAX: Final = 10_000
PART_BYTES_STEP: Final = 1024 * 1024
OBJECT_EXISTS: Final = "There is another object at this place already."
SHA256_HEADER: Final = "x-amz-checksum-sha256"
CHECKSUM_ALGORITHM_HEADERS: Final = {"x-amz-checksum-algorithm": "SHA256"}
JOIN_REFUSED_STATUSES: Final = frozenset(
    {400, 404, 412}
)  # Parts that are not as they should be, or were joined before.
LIST_PAGE_ITEMS: Final = 1000  # The most that a store lists in one response.
LIST_UNSUPPORTED_STATUSES: Final = frozenset({404, 405, 501})


class MultipartUploads:
    """The objects of one bucket that are on their way in parts."""

    def __init__(self, requests: BucketClient) -> None:
        self._client = requests
        self.lists_digests = True

    async def probe_digest_listing(self, key: str) -> None:
        """Find out whether the store lists the digests of parts.

        One that is told at the beginning that parts have digests wants them again when they are joined, and whoever
        joins them knows only what is listed. SeaweedFS lists none: it is told with each part alone, and holds that to
        it all the same.
        """
        self.lists_digests = True
        multipart = await self.begin(key)
        try:
            await self.put(key, multipart, 1, b"1")
            self.lists_digests = any(part.sha256 for part in await self.list(key, multipart) or [])
        finally:
            await self.abort(key, multipart)

    async def begin(self, key: str) -> str:
        """Begin one, and answer its id."""
        headers = CHECKSUM_ALGORITHM_HEADERS if self.lists_digests else {}
        answer = await self._client.send("POST", key, query={"uploads": ""}, headers=headers)
        if not (multipart := answer.xml_text("UploadId")):
            raise StoreError("The object store began a multipart upload without an id.")
        return multipart

    def sign(self, key: str, multipart: str, part: ObjectPart, *, seconds: int) -> SignedPart:
        """Where a client puts this part, and nothing else."""
        headers = {"Content-Length": str(part.size)}
        if part.sha256 is not None:
            headers[SHA256_HEADER] = base64_digest(part.sha256)
        url = self._client.presigned_url(
            "PUT", key, seconds=seconds, query=_part_query(multipart, part.number), headers=headers
        )
        return SignedPart(number=part.number, url=url, headers=headers)

    async def put(self, key: str, multipart: str, number: int, body: bytes) -> ObjectPart:
        """Send a part ourselves."""
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        await self._client.send(
            "PUT", key, query=_part_query(multipart, number), headers={SHA256_HEADER: base64_digest(digest)}, body=body
        )
        return ObjectPart(number=number, size=len(body), sha256=digest)

    async def list(self, key: str, multipart: str) -> list[ObjectPart] | None:
        """The parts that are there, in order; `None` when there is no such object on its way any more.

        SeaweedFS lists a part that was sent twice twice: the last counts.
        """
        parts: dict[int, ObjectPart] = {}
        marker = "0"
        while True:
            query = {"uploadId": multipart, "max-parts": str(LIST_PAGE_ITEMS), "part-number-marker": marker}
            answer = await self._client.send("GET", key, query=query, accepted_statuses={404})
            if answer.status == 404:
                return None
            page = [_parse_part(part) for part in answer.xml.iterfind("{*}Part")] if answer.xml is not None else []
            parts |= {part.number: part for part in page}
            if answer.xml_text("IsTruncated") != "true" or not page or len(parts) >= PARTS_MAX:
                return [parts[number] for number in sorted(parts)]
            marker = str(page[-1].number)

    async def join(self, key: str, multipart: str, parts: Sequence[ObjectPart], *, conditional: bool) -> bool:
        """Make the object of its parts; false when it is not on its way any more.

        Raises `UploadIncomplete`, or `StoreError` when there is another object already.
        """
        there = await self.list(key, multipart)
        if there is None:
            return False
        known = _match_parts(parts, there)
        headers = {"if-none-match": "*"} if conditional else {}
        body = "".join(_part_xml(part, digest=self.lists_digests) for part in known)
        answer = await self._client.send(
            "POST",
            key,
            query={"uploadId": multipart},
            headers=headers,
            body=f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode(),
            accepted_statuses=JOIN_REFUSED_STATUSES,
        )
        if answer.status == 400:
            raise UploadIncomplete(f"The parts cannot be joined: the object store answered {answer.code}.")
        if answer.status == 412 and await self.list(key, multipart) is not None:
            raise StoreError(OBJECT_EXISTS)
        return answer.status not in JOIN_REFUSED_STATUSES

    async def list_keys(self, prefix: str) -> AsyncIterator[tuple[str, datetime]]:
        """The keys of all that are on their way, and since when."""
        query = {"uploads": "", "prefix": prefix, "max-uploads": str(LIST_PAGE_ITEMS)}
        while True:
            answer = await self._client.send("GET", query=query, accepted_statuses=LIST_UNSUPPORTED_STATUSES)
            found = list(answer.xml.iterfind("{*}Upload")) if answer.xml is not None else []
            for upload in found:
                since = datetime.fromisoformat(upload.findtext("{*}Initiated", ""))
                yield upload.findtext("{*}Key", ""), since
            if answer.xml_text("IsTruncated") != "true" or not found:
                return
            query |= {
                "key-marker": answer.xml_text("NextKeyMarker"),
                "upload-id-marker": answer.xml_text("NextUploadIdMarker"),
            }

    async def abort(self, key: str, multipart: str | None) -> None:
        """Forget this one, and all others for the same key: of one that we began, nobody may know the id."""
        answer = await self._client.send(
            "GET", query={"uploads": "", "prefix": key}, accepted_statuses=LIST_UNSUPPORTED_STATUSES
        )
        found = answer.xml.iterfind("{*}Upload") if answer.xml is not None else []
        ids = {upload.findtext("{*}UploadId", "") for upload in found if upload.findtext("{*}Key") == key}
        for id in sorted(ids | {multipart or ""} - {""}):
            await self._client.send("DELETE", key, query={"uploadId": id}, accepted_statuses={404})


def part_size(size: int, least: int) -> int:
    """How large parts are, so that this size has no more than may be."""
    needed = -(-size // PARTS_MAX)
    return max(least, -(-needed // PART_BYTES_STEP) * PART_BYTES_STEP)


def base64_digest(sha256: str) -> str:
    """A digest as the store writes it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _part_query(multipart: str, number: int) -> dict[str, str]:
    return {"partNumber": str(number), "uploadId": multipart}


def _parse_part(found: ElementTree.Element) -> ObjectPart:
    sha256 = found.findtext("{*}ChecksumSHA256")
    return ObjectPart(
        number=int(found.findtext("{*}PartNumber", "0")),
        size=int(found.findtext("{*}Size", "0")),
        sha256=base64.b64decode(sha256).hex() if sha256 else None,
        etag=found.findtext("{*}ETag"),
    )


def _match_parts(parts: Sequence[ObjectPart], there: Sequence[ObjectPart]) -> list[ObjectPart]:
    """The parts with all that is known of them. Raises `UploadIncomplete`."""
    found = {part.number: part for part in there}
    known = []
    for number, part in enumerate(sorted(parts, key=lambda part: part.number), start=1):
        other = found.get(number)
        if part.number != number or other is None:
            raise UploadIncomplete(f"Part {number} is not there.")
        digests = {part.sha256, other.sha256} - {None}
        if part.size != other.size or len(digests) > 1:
            raise UploadIncomplete(f"Part {number} is not the one that was announced.", hint="Send this part again.")
        known.append(ObjectPart(number=number, size=part.size, sha256=next(iter(digests), None), etag=other.etag))
    if not known:
        raise UploadIncomplete("There is no part.")
    return known


def _part_xml(part: ObjectPart, *, digest: bool) -> str:
    told = f"<ChecksumSHA256>{base64_digest(part.sha256)}</ChecksumSHA256>" if digest and part.sha256 else ""
    return f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag or '')}</ETag>{told}</Part>"
