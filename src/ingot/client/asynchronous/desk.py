"""Uploads as the server plans them, and how one that was begun before goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from ingot.blobs.errors import UploadNotFound
from ingot.blobs.model import UploadState
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.outgoing import Unfinished
from ingot.client.paths import at
from ingot.kernel.errors import IngotError
from ingot.wire.blobs import PartOrder, PartsAnswer, UploadAnswer, UploadPlan

COMPLETE_SECONDS: Final = 60.0  # Longer than usual: the bytes are read back.


class AsyncPlanned:
    """An upload that was planned with something else, such as a job."""

    _named: Mapping[str, str] = {}  # What shows that one may go on with it.

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        self._http = http
        self._plan = plan

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        return self._plan, []

    async def renewed(self, id: str) -> UploadAnswer:
        """How it goes on at an address that is new, for one whose time is over."""
        return await self._http.ask("GET", at("blobs", "uploads", id), UploadAnswer, query={**self._named})

    async def signed(self, id: str, part: PartOrder) -> PartsAnswer:
        """Where a part is sent to."""
        path, body = at("blobs", "uploads", id, "parts"), {**self._named, "parts": [part]}
        return await self._http.ask("POST", path, PartsAnswer, body=body, safe=True)

    async def complete(self, id: str) -> UploadAnswer:
        """All bytes are sent."""
        path, body = at("blobs", "uploads", id, "complete"), {**self._named}
        return await self._http.ask("POST", path, UploadAnswer, body=body, safe=True, wait_seconds=COMPLETE_SECONDS)

    async def give_up(self, id: str) -> None:
        """Nothing comes of it."""
        with suppress(IngotError):  # It is swept otherwise.
            await self._http.ask("DELETE", at("blobs", "uploads", id), bytes)


class AsyncJoined(AsyncPlanned):
    """An upload that was begun before by somebody who asked for the same: who has the file too goes on with it."""

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        super().__init__(http, plan)
        self._named = {"blob_id": plan.upload.blob_id or ""}

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        if self._plan.part_bytes is None:
            return self._plan, []
        return self._plan, (await self.renewed(self._plan.upload.id)).parts

    async def give_up(self, id: str) -> None:
        """Leave it to others, who may go on with it."""


class AsyncOrdered(AsyncPlanned):
    """An upload that is ordered by itself, or with `unfinished` goes on.

    `begun` is told what to remember, to go on with it another time.
    """

    def __init__(
        self,
        http: AsyncHttp,
        order: dict[str, Any],
        *,
        unfinished: Unfinished | None = None,
        begun: Callable[[Unfinished], None] | None = None,
    ) -> None:
        self._http = http
        self._order = order
        self._unfinished = unfinished
        self._begun = begun

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        if self._unfinished is not None and (known := await self._resume(self._unfinished)) is not None:
            return known
        # A beginning that is asked for twice leaves one that is swept, as one whose answer was lost does.
        plan = await self._http.ask("POST", "/blobs/uploads", UploadPlan, body=self._order, safe=True)
        if self._begun is not None and plan.upload.state is UploadState.OPEN:
            self._begun(Unfinished(id=plan.upload.id, part_bytes=plan.part_bytes))
        return plan, []

    async def _resume(self, unfinished: Unfinished) -> tuple[UploadPlan, list[int]] | None:
        """How to go on with one that was begun before, and the parts that are there; `None` when it is of no use."""
        try:
            found = await self._http.ask("GET", at("blobs", "uploads", unfinished.id), UploadAnswer)
        except UploadNotFound:
            return None
        upload = found.upload
        if upload.state is not UploadState.OPEN:
            return None if upload.state is UploadState.FAILED else (UploadPlan(upload=upload), [])
        asked = [self._order.get(name) for name in ("size", "blob_id", "key")]
        goes_on = found.resumable or unfinished.part_bytes is not None
        if not goes_on or [upload.size, upload.blob_id, upload.key] != asked:
            await self.give_up(upload.id)
            return None
        part_bytes = None if found.resumable else unfinished.part_bytes
        plan = UploadPlan(upload=upload, url=found.url, resumable=found.resumable, part_bytes=part_bytes)
        return plan, found.parts
