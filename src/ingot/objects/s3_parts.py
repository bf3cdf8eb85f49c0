"""Multipart uploads to a bucket. Each part has its own digest."""

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
OBJECT_EXISTS: Final = "There is already another object at this storage key."
SHA256_HEADER: Final = "x-amz-checksum-sha256"
CHECKSUM_ALGORITHM_HEADERS: Final = {"x-amz-checksum-algorithm": "SHA256"}
# Responses when parts differ from what the request says, or when they were joined before.
JOIN_REFUSED_STATUSES: Final = frozenset({400, 404, 412})
LIST_PAGE_ITEMS: Final = 1000  # The maximum that a store lists in one response.
LIST_UNSUPPORTED_STATUSES: Final = frozenset({404, 405, 501})


class MultipartUploads:
    """The multipart uploads of one bucket."""

    def __init__(self, client: BucketClient) -> None:
        self._client = client
        self.lists_digests = True

    async def probe_digest_listing(self, key: str) -> None:
        """Find out whether the store lists the digests of parts.

        When a multipart upload is begun with a checksum algorithm, the store requires all digests again when the parts
        are joined, and only listing can provide them. SeaweedFS does not list digests. There, the algorithm is not
        announced; the store still verifies the digest that is sent with each part.
        """
        self.lists_digests = True
        multipart = await self.begin(key)
        try:
            await self.put(key, multipart, 1, b"1")
            self.lists_digests = any(part.sha256 for part in await self.list(key, multipart) or [])
        finally:
            await self.abort(key, multipart)

    async def begin(self, key: str) -> str:
        """Begin a multipart upload and return its ID."""
        headers = CHECKSUM_ALGORITHM_HEADERS if self.lists_digests else {}
        response = await self._client.send("POST", key, query={"uploads": ""}, headers=headers)
        if not (multipart := response.xml_text("UploadId")):
            raise StoreError("The object store returned no ID for a multipart upload.")
        return multipart

    def sign(self, key: str, multipart: str, part: ObjectPart, *, seconds: int) -> SignedPart:
        """Sign a URL to which a client can PUT exactly this part."""
        headers = {"Content-Length": str(part.size)}
        if part.sha256 is not None:
            headers[SHA256_HEADER] = base64_digest(part.sha256)
        url = self._client.presigned_url(
            "PUT", key, seconds=seconds, query=_part_query(multipart, part.number), headers=headers
        )
        return SignedPart(number=part.number, url=url, headers=headers)

    async def put(self, key: str, multipart: str, number: int, body: bytes) -> ObjectPart:
        """Send a part from the server."""
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        await self._client.send(
            "PUT", key, query=_part_query(multipart, number), headers={SHA256_HEADER: base64_digest(digest)}, body=body
        )
        return ObjectPart(number=number, size=len(body), sha256=digest)

    async def list(self, key: str, multipart: str) -> list[ObjectPart] | None:
        """List the stored parts in order. Returns `None` if the multipart upload does not exist.

        SeaweedFS lists a part twice if it was sent twice; the last one is used.
        """
        parts: dict[int, ObjectPart] = {}
        marker = "0"
        while True:
            query = {"uploadId": multipart, "max-parts": str(LIST_PAGE_ITEMS), "part-number-marker": marker}
            response = await self._client.send("GET", key, query=query, accepted_statuses={404})
            if response.status == 404:
                return None
            page = [_parse_part(part) for part in response.xml.iterfind("{*}Part")] if response.xml is not None else []
            parts |= {part.number: part for part in page}
            if response.xml_text("IsTruncated") != "true" or not page or len(parts) >= PARTS_MAX:
                return [parts[number] for number in sorted(parts)]
            marker = str(page[-1].number)

    async def join(self, key: str, multipart: str, parts: Sequence[ObjectPart], *, conditional: bool) -> bool:
        """Create the object from its parts. Returns false if the multipart upload does not exist any more.

        Raises `UploadIncomplete`, or `StoreError` if there is already another object.
        """
        stored_parts = await self.list(key, multipart)
        if stored_parts is None:
            return False
        parts = _match_parts(parts, stored_parts)
        headers = {"if-none-match": "*"} if conditional else {}
        body = "".join(_part_xml(part, digest=self.lists_digests) for part in parts)
        response = await self._client.send(
            "POST",
            key,
            query={"uploadId": multipart},
            headers=headers,
            body=f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode(),
            accepted_statuses=JOIN_REFUSED_STATUSES,
        )
        if response.status == 400:
            raise UploadIncomplete(f"The parts cannot be joined: the object store responded {response.code}.")
        if response.status == 412 and await self.list(key, multipart) is not None:
            raise StoreError(OBJECT_EXISTS)
        return response.status not in JOIN_REFUSED_STATUSES

    async def list_keys(self, prefix: str) -> AsyncIterator[tuple[str, datetime]]:
        """Yield the key and the start time of each multipart upload with this prefix."""
        query = {"uploads": "", "prefix": prefix, "max-uploads": str(LIST_PAGE_ITEMS)}
        while True:
            response = await self._client.send("GET", query=query, accepted_statuses=LIST_UNSUPPORTED_STATUSES)
            uploads = list(response.xml.iterfind("{*}Upload")) if response.xml is not None else []
            for upload in uploads:
                begun_at = datetime.fromisoformat(upload.findtext("{*}Initiated", ""))
                yield upload.findtext("{*}Key", ""), begun_at
            if response.xml_text("IsTruncated") != "true" or not uploads:
                return
            query |= {
                "key-marker": response.xml_text("NextKeyMarker"),
                "upload-id-marker": response.xml_text("NextUploadIdMarker"),
            }

    async def abort(self, key: str, multipart: str | None) -> None:
        """Abort all multipart uploads of a key, with and without the given ID.

        There may be others: the response to the request that began one, and thereby its ID, may have been lost.
        """
        response = await self._client.send(
            "GET", query={"uploads": "", "prefix": key}, accepted_statuses=LIST_UNSUPPORTED_STATUSES
        )
        uploads = response.xml.iterfind("{*}Upload") if response.xml is not None else []
        ids = {upload.findtext("{*}UploadId", "") for upload in uploads if upload.findtext("{*}Key") == key}
        for id in sorted(ids | {multipart or ""} - {""}):
            await self._client.send("DELETE", key, query={"uploadId": id}, accepted_statuses={404})


def part_size(size: int, minimum: int) -> int:
    """Return a part size of whole MiB, at least `minimum`, with which an object has at most `PARTS_MAX` parts."""
    needed = -(-size // PARTS_MAX)
    return max(minimum, -(-needed // PART_BYTES_STEP) * PART_BYTES_STEP)


def base64_digest(sha256: str) -> str:
    """Convert a hexadecimal digest to the form of S3."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _part_query(multipart: str, number: int) -> dict[str, str]:
    return {"partNumber": str(number), "uploadId": multipart}


def _parse_part(element: ElementTree.Element) -> ObjectPart:
    sha256 = element.findtext("{*}ChecksumSHA256")
    return ObjectPart(
        number=int(element.findtext("{*}PartNumber", "0")),
        size=int(element.findtext("{*}Size", "0")),
        sha256=base64.b64decode(sha256).hex() if sha256 else None,
        etag=element.findtext("{*}ETag"),
    )


def _match_parts(parts: Sequence[ObjectPart], stored_parts: Sequence[ObjectPart]) -> list[ObjectPart]:
    """Compare announced parts with stored parts, and return them with digests and ETags. Raises `UploadIncomplete`."""
    stored_by_number = {part.number: part for part in stored_parts}
    matched = []
    for number, part in enumerate(sorted(parts, key=lambda part: part.number), start=1):
        stored = stored_by_number.get(number)
        if part.number != number or stored is None:
            raise UploadIncomplete(f"Part {number} is missing.", hint="Send this part, then complete the upload.")
        digests = {part.sha256, stored.sha256} - {None}
        if part.size != stored.size or len(digests) > 1:
            raise UploadIncomplete(
                f"Part {number} differs from the announced size or digest.", hint="Send this part again."
            )
        matched.append(ObjectPart(number=number, size=part.size, sha256=next(iter(digests), None), etag=stored.etag))
    if not matched:
        raise UploadIncomplete("The upload has no parts.", hint="Send the parts, then complete the upload.")
    return matched


def _part_xml(part: ObjectPart, *, digest: bool) -> str:
    checksum = f"<ChecksumSHA256>{base64_digest(part.sha256)}</ChecksumSHA256>" if digest and part.sha256 else ""
    return f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag or '')}</ETag>{checksum}</Part>"
