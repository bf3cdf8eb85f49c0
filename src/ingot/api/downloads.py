"""How the bytes of a blob are answered: by us, or by way of an address where a bucket has them."""

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
    """Answers bytes, and signs addresses where they can be read without a credential."""

    def __init__(
        self, signer: Signer, signing: SigningStore | None, tally: BlobCounters, *, public_url: str | None
    ) -> None:
        self._signer = signer
        self._bucket = signing
        self._counters = tally
        self._public_url = public_url

    async def respond(
        self, call: Request, opened: OpenBlob, *, content_type: str, name: str
    ) -> BytesResponse | Response[bytes]:
        """The blob, or the range of it that is asked for. What a bucket has is read there.

        HEAD is answered here, and so are conditions: a signed address is for GET alone, and does not know our ETag.
        """
        content = opened.content
        in_bucket = self._bucket is not None and content.storage_key is not None
        if in_bucket and call.method == "GET" and _selected_range(call, content).status != 304:
            url = await self.bucket_url(content, content_type=content_type, name=name, seconds=URL_SECONDS)
            headers = {"location": url, "etag": f'"{content.id}"', "cache-control": "no-store"}
            return Response(b"", status=307, headers=headers)
        return self.respond_with_bytes(call, opened, content_type=content_type, name=name)

    def respond_with_bytes(
        self, call: Request, opened: OpenBlob, *, content_type: str, name: str
    ) -> BytesResponse | Response[bytes]:
        """The blob, or the range of it that is asked for, from where we have it."""
        content = opened.content
        chosen = _selected_range(call, content)
        headers = {
            **DOWNLOAD_HEADERS,
            **chosen.headers,
            "content-type": safe_content_type(content_type),
            "content-disposition": content_disposition(name),
            "cache-control": "private, no-cache",
        }
        if chosen.status == 304:
            return Response(b"", status=304, headers=headers)
        self._counters.bytes_out += chosen.length if call.method == "GET" else 0
        return BytesResponse(
            length=chosen.length,
            chunks=opened.chunks(chosen.start, chosen.end),
            headers=headers,
            status=chosen.status,
        )

    def inline_bytes(self, content: Content) -> bytes | None:
        """The bytes of a blob that is kept inside; `None` for others, and for one whose bytes are wrong by now."""
        if content.inline is None or blake3(content.inline).hexdigest() != content.id:
            return None
        self._counters.bytes_out += len(content.inline)
        return content.inline

    async def signed_url(
        self,
        call: Request,
        content: Content,
        *,
        content_type: str,
        name: str,
        seconds: int = URL_SECONDS,
        tenant: str | None = None,
    ) -> SignedUrl:
        """An address where the blob can be read, for a while, by whoever has it. Raises `BlobDamaged`."""
        if content.damaged:
            raise BlobDamaged(f"the blob {content.id} is damaged")
        self._counters.signed_urls += 1
        if self._bucket is not None and content.storage_key is not None:
            url = await self.bucket_url(content, content_type=content_type, name=name, seconds=seconds)
            return SignedUrl(url=url, expires_in=seconds)
        path = f"{PREFIX}/blobs/{content.id}/bytes"
        params = {"tenant": tenant or call.tenant, "name": name, "type": content_type}
        signed = self._signer.sign("GET", path, params, seconds)
        return SignedUrl(url=f"{self._public_url or call.base_url}{signed}", expires_in=seconds)

    async def bucket_url(self, content: Content, *, content_type: str, name: str, seconds: int) -> str:
        """An address of the bucket's own."""
        assert self._bucket is not None
        assert content.storage_key is not None
        return await self._bucket.sign_read_url(
            content.storage_key,
            seconds=seconds,
            content_type=safe_content_type(content_type),
            disposition=content_disposition(name),
        )


def _selected_range(call: Request, content: Content) -> SelectedRange:
    return select_range(call, size=content.size, etag=f'"{content.id}"')
