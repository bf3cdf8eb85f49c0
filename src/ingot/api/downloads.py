"""Responses with the bytes of a blob, and signed URLs at which they can be downloaded."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from ingot.blobs.counters import BlobCounters
from ingot.blobs.errors import BlobDamaged
from ingot.blobs.model import Content
from ingot.blobs.open_blob import OpenBlob
from ingot.blobs.ports import SigningStore
from ingot.http.ranges import DOWNLOAD_HEADERS, SelectedRange, content_disposition, safe_content_type, select_range
from ingot.http.request import BytesResponse, Request, Response
from ingot.http.routes import PREFIX
from ingot.http.signing import Signer
from ingot.wire.blobs import SignedUrl

URL_SECONDS: Final = 3600


class Downloads:
    """Sends the bytes of blobs, and signs URLs at which they can be downloaded without a credential."""

    def __init__(
        self,
        signer: Signer,
        bucket: SigningStore | None,
        counters: BlobCounters,
        *,
        public_url: str | None,
        bucket_url_seconds: int = URL_SECONDS,
    ) -> None:
        self._signer = signer
        self._bucket = bucket
        self._counters = counters
        self._public_url = public_url
        self._bucket_url_seconds = bucket_url_seconds

    async def respond(
        self, request: Request, opened: OpenBlob, *, content_type: str, name: str
    ) -> BytesResponse | Response[bytes]:
        """Respond with a blob or the requested range. Redirect to the bucket if the blob is there.

        HEAD and unchanged blobs (304) are never redirected: a signed URL of a bucket works for GET only, and the bucket
        does not know our ETag.
        """
        content = opened.content
        in_bucket = self._bucket is not None and content.storage_key is not None
        if in_bucket and request.method == "GET" and _selected_range(request, content).status != 304:
            if not await self._has_verified_object(content):
                opened.report_damage()
                raise _changed_error(content)
            url = await self.bucket_url(content, content_type=content_type, name=name)
            headers = {"location": url, "etag": f'"{content.id}"'}
            return Response(b"", status=307, headers=headers)
        return self.respond_with_bytes(request, opened, content_type=content_type, name=name)

    async def _has_verified_object(self, content: Content) -> bool:
        """Return whether the object in the bucket has the size and the ETag that it had when it was verified."""
        assert self._bucket is not None
        assert content.storage_key is not None
        stored = await self._bucket.describe(content.storage_key)
        return stored is not None and stored.size == content.size and content.etag in (None, stored.etag)

    def respond_with_bytes(
        self, request: Request, opened: OpenBlob, *, content_type: str, name: str
    ) -> BytesResponse | Response[bytes]:
        """Respond with a blob or the requested range, without a redirect."""
        content = opened.content
        chosen = _selected_range(request, content)
        headers = {
            **DOWNLOAD_HEADERS,
            **chosen.headers,
            "content-type": safe_content_type(content_type),
            "content-disposition": content_disposition(name),
            "cache-control": "private, no-cache",
        }
        if chosen.status == 304:
            return Response(b"", status=304, headers=headers)
        self._counters.bytes_out += chosen.length if request.method == "GET" else 0
        return BytesResponse(
            length=chosen.length,
            chunks=opened.chunks(chosen.start, chosen.end),
            headers=headers,
            status=chosen.status,
        )

    def inline_bytes(self, content: Content) -> bytes | None:
        """Return the bytes of an inline blob, or `None` if the blob is not inline or its bytes are damaged."""
        if content.inline is None or blake3(content.inline).hexdigest() != content.id:
            return None
        self._counters.bytes_out += len(content.inline)
        return content.inline

    async def signed_url(
        self,
        request: Request,
        content: Content,
        *,
        content_type: str,
        name: str,
        seconds: int = URL_SECONDS,
        tenant: str | None = None,
    ) -> SignedUrl:
        """Sign a URL at which the blob can be downloaded without a credential. Raises `BlobDamaged`."""
        if content.damaged:
            raise BlobDamaged(f"the blob {content.id} is damaged")
        self._counters.signed_urls += 1
        if self._bucket is not None and content.storage_key is not None:
            if not await self._has_verified_object(content):
                raise _changed_error(content)
            seconds = min(seconds, self._bucket_url_seconds)
            url = await self.bucket_url(content, content_type=content_type, name=name, seconds=seconds)
            return SignedUrl(url=url, expires_in=seconds)
        path = f"{PREFIX}/blobs/{content.id}/bytes"
        params = {"tenant": tenant or request.tenant, "name": name, "type": content_type}
        signed = self._signer.sign("GET", path, params, seconds)
        return SignedUrl(url=f"{self._public_url or request.base_url}{signed}", expires_in=seconds)

    async def bucket_url(self, content: Content, *, content_type: str, name: str, seconds: int = URL_SECONDS) -> str:
        """Sign a URL of the bucket for a blob that is stored there. It expires before a deleted blob is collected."""
        assert self._bucket is not None
        assert content.storage_key is not None
        return await self._bucket.sign_read_url(
            content.storage_key,
            seconds=min(seconds, self._bucket_url_seconds),
            content_type=safe_content_type(content_type),
            disposition=content_disposition(name),
        )


def _changed_error(content: Content) -> BlobDamaged:
    return BlobDamaged(f"the object of the blob {content.id} is missing or was changed")


def _selected_range(request: Request, content: Content) -> SelectedRange:
    return select_range(request, size=content.size, etag=f'"{content.id}"')
