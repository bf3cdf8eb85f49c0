"""Reading a blob. Each part is verified before its bytes are returned."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import read_verified, verify_part
from ingot.blobs.model import Content
from ingot.blobs.ports import ObjectStore

BlobChunk = bytes | memoryview


class OpenBlob:
    """A blob to read. `on_damage` is called when its bytes do not match their checksums.

    Raises `BlobDamaged` for a blob that is known to be damaged, unless `allow_damaged` is set: the scrub reads such a
    blob again to find out whether it still is.
    """

    def __init__(
        self,
        content: Content,
        objects: ObjectStore,
        on_damage: Callable[[Content], None],
        *,
        allow_damaged: bool = False,
    ) -> None:
        if content.damaged and not allow_damaged:
            raise BlobDamaged(f"the blob {content.id} is damaged")
        self.content = content
        self._objects = objects
        self._on_damage = on_damage

    def report_damage(self) -> None:
        """Report that the object of the blob is missing or was changed."""
        self._on_damage(self.content)

    async def chunks(self, start: int = 0, end: int | None = None) -> AsyncGenerator[BlobChunk, None]:
        """Yield the bytes from `start` up to `end`. Raises `BlobDamaged` before a damaged part is yielded."""
        end = self.content.size if end is None else end
        try:
            if self.content.storage_key is None:
                yield self._inline_data()[start:end]
                return
            async with aclosing(read_verified(self._objects, self.content, start, end)) as parts:
                async for part in parts:
                    yield part
        except BlobDamaged:
            self._on_damage(self.content)
            raise

    async def read_all(self) -> bytes:
        """Return all bytes at once. For small blobs."""
        async with aclosing(self.chunks()) as parts:
            return b"".join([part async for part in parts])

    def _inline_data(self) -> bytes:
        inline = self.content.inline or b""
        if len(inline) != self.content.size:
            raise BlobDamaged("Some bytes of this blob are missing.")
        if inline:
            verify_part(0, inline, self.content.part_checksums)
        return inline
