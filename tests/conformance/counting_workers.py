"""A store that counts the heartbeats and lease checks of workers, so that tests wait on signals."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from ingot.jobs.ports import CheckLeases, WorkerHeartbeat, WorkerStore
from ingot.kernel.commands import Command

A = TypeVar("A")


class WatchedWorkers:
    """Passes everything on to a real store, and counts what is asked of it."""

    def __init__(self, store: WorkerStore) -> None:
        self._store = store
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.looks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, command: Command[A]) -> A:
        if isinstance(command, CheckLeases):
            self.looks.append(len(command.leases))
        answer = await self._store.run(command)
        if isinstance(command, WorkerHeartbeat):
            self.answers.put_nowait(command.worker_id)
        return answer
