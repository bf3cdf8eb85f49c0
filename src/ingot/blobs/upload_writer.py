"""One request that writes the bytes of an upload, until another request takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ingot.blobs.errors import UploadTaken
from ingot.blobs.model import Upload


class UploadWriter:
    """A task that writes an upload and that the next writer can stop.

    `ended` is set by the owner of the writer after `run` has returned and the writer is no longer registered.
    """

    def __init__(self, writing: Coroutine[Any, Any, Upload]) -> None:
        self._task = asyncio.create_task(writing)
        self._stopped = False
        self.ended = asyncio.Event()

    async def run(self) -> Upload:
        """Write all bytes. Raises `UploadTaken` if another writer stopped this one.

        Bytes that arrived before a stop or a cancellation are made durable first.
        """
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._stopped:
                self._task.cancel()
            await asyncio.wait([self._task])  # The task makes the bytes durable that have arrived.
            if self._stopped:
                raise UploadTaken from None
            raise

    def stop(self) -> None:
        """Stop writing, because another writer takes over. Does not wait; `ended` is set afterwards."""
        self._stopped = True
        self._task.cancel()
