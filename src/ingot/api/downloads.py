"""How the bytes of a blob are answered: by us, or by way of an address where a bucket has them."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.model import Content
from ingot.blobs.ports import SigningStore
from ingot.blobs.reading import OpenBlob
from ingot.blobs.tally import Tally
from ingot.http.call import Answer, Bytes, Call
from ingot.http.ranges import HANDED_OUT, Wanted, disposition, safe_type, wanted
from ingot.http.signing import Signer
from ingot.http.table import PREFIX
from ingot.wire.blobs import SignedUrl

URL_SECONDS: Final = 3600


class Downloads:
    """Answers bytes, and signs addresses where they can be read without a credential."""

    def __init__(self, signer: Signer, signing: SigningStore | None, tally: Tally, *, public_url: str | None) -> None:
        self._signer = signer
        self._signing = signing
        self._tally = tally
        self._public_url = public_url

    async def answer(self, call: Call, opened: OpenBlob, *, content_type: str, name: str) -> Bytes | Answer[bytes]:
        """The blob, or the range of it that is asked for. What a bucket has is read there.

        HEAD is answered here, and so are conditions: a signed address is for GET alone, and does not know our ETag.
        """
        content = opened.content
        in_bucket = self._signing is not None and content.place is not None
        if in_bucket and call.method == "GET" and _chosen(call, content).status != 304:
            url = await self.url_at_bucket(content, content_type=content_type, name=name, seconds=URL_SECONDS)
            headers = {"location": url, "etag": f'"{content.id}"', "cache-control": "no-store"}
            return Answer(b"", status=307, headers=headers)
        return self.from_us(call, opened, content_type=content_type, name=name)

    def from_us(self, call: Call, opened: OpenBlob, *, content_type: str, name: str) -> Bytes | Answer[bytes]:
        """The blob, or the range of it that is asked for, from where we have it."""
        content = opened.content
        chosen = _chosen(call, content)
        headers = {
            **HANDED_OUT,
            **chosen.headers,
            "content-type": safe_type(content_type),
            "content-disposition": disposition(name),
            "cache-control": "private, no-cache",
        }
        if chosen.status == 304:
            return Answer(b"", status=304, headers=headers)
        self._tally.bytes_out += chosen.length if call.method == "GET" else 0
        return Bytes(
            length=chosen.length,
            parts=opened.parts(chosen.start, chosen.end),
            headers=headers,
            status=chosen.status,
        )

    def small(self, content: Content) -> bytes | None:
        """The bytes of a blob that is kept inside; `None` for others, and for one whose bytes are wrong by now."""
        if content.inline is None or blake3(content.inline).hexdigest() != content.id:
            return None
        self._tally.bytes_out += len(content.inline)
        return content.inline

    async def url(
        self,
        call: Call,
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
        self._tally.addresses += 1
        if self._signing is not None and content.place is not None:
            url = await self.url_at_bucket(content, content_type=content_type, name=name, seconds=seconds)
            return SignedUrl(url=url, expires_in=seconds)
        path = f"{PREFIX}/blobs/{content.id}/bytes"
        params = {"tenant": tenant or call.tenant, "name": name, "type": content_type}
        signed = self._signer.sign("GET", path, params, seconds)
        return SignedUrl(url=f"{self._public_url or call.here}{signed}", expires_in=seconds)

    async def url_at_bucket(self, content: Content, *, content_type: str, name: str, seconds: int) -> str:
        """An address of the bucket's own."""
        assert self._signing is not None
        assert content.place is not None
        return await self._signing.sign_read(
            content.place, seconds=seconds, content_type=safe_type(content_type), disposition=disposition(name)
        )


def _chosen(call: Call, content: Content) -> Wanted:
    return wanted(call, size=content.size, etag=f'"{content.id}"')
