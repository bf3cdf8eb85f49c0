"""One who writes an upload, until somebody else comes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ingot.blobs.errors import UploadTaken
from ingot.blobs.model import Upload


class UploadWriter:
    """A writer of an upload, that is stopped by the one who comes after it."""

    def __init__(self, writing: Coroutine[Any, Any, Upload]) -> None:
        self._task = asyncio.create_task(writing)
        self._stopped = False
        self.ended = asyncio.Event()

    async def run(self) -> Upload:
        """Write until all is here. Raises `UploadTaken` when it was stopped."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._stopped:
                self._task.cancel()
            await asyncio.wait([self._task])  # What has come is made safe, whoever has gone.
            if self._stopped:
                raise UploadTaken from None
            raise

    def stop(self) -> None:
        """Have it end: somebody else goes on."""
        self._stopped = True
        self._task.cancel()
