"""A store that counts the heartbeats and lease checks of workers, so that tests wait on signals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ingot.jobs.crew import Heard, Held
from ingot.jobs.ports import HearWorker, WorkerStore


class WatchedWorkers:
    """Passes everything on to a real store, and counts what is asked of it."""

    def __init__(self, store: WorkerStore) -> None:
        self._store = store
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.looks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def hear_worker(self, command: HearWorker) -> Heard:
        heard = await self._store.hear_worker(command)
        self.answers.put_nowait(command.worker_id)
        return heard

    async def check_leases(self, leases: Sequence[Held]) -> list[Held]:
        self.looks.append(len(leases))
        return await self._store.check_leases(leases)
