"""A store that counts the looks of claims, and can hold or fail an answer, so that tests wait on signals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ingot.jobs import Claim, Jobs
from ingot.jobs.ports import ClaimJobs, JobStore
from ingot.kernel.commands import Command
from tests.factories import LEASE_SECONDS


class WatchedStore:
    """Passes everything on to a real store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._answered = asyncio.Condition()
        self._noting: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[str, str, int], object]] = []
        self.looks = 0
        self._answers = 0
        self._empty_answers = 0
        self.held: dict[str, asyncio.Event] = {}
        self.failing: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def on_ready(self, tell: Callable[[str, str, int], object]) -> None:
        """Listen to the real store, and to `tell_ready`."""
        self._listeners.append(tell)
        self._store.on_ready(tell)

    def tell_ready(self, tenant: str, type: str) -> None:
        """Wake one claim for a job that is not there, as when somebody else was quicker."""
        for tell in self._listeners:
            tell(tenant, type, 1)

    def jobs(self) -> Jobs:
        """The service in front of this store."""
        return Jobs(cast("JobStore", self), lease_seconds=LEASE_SECONDS)

    def run(self, command: Command[Any]) -> Awaitable[Any]:
        """Run a command as the real store does, and watch claims."""
        return self._claim(command) if isinstance(command, ClaimJobs) else self._store.run(command)

    def _claim(self, command: ClaimJobs) -> Awaitable[list[Claim]]:
        """Claim, note it, and hold or fail the answer where a test has said so."""
        self.looks += 1
        if command.worker_id in self.failing:
            raise self.failing[command.worker_id]
        answer = asyncio.ensure_future(self._store.run(command))
        answer.add_done_callback(self._note)
        gate = self.held.get(command.worker_id)
        return answer if gate is None else self._answer_later(answer, gate)

    async def answered(self, count: int) -> None:
        """Wait until so many looks have been answered by the real store."""
        async with self._answered:
            await self._answered.wait_for(lambda: self._answers >= count)

    async def found_nothing(self, count: int) -> None:
        """Wait until so many looks have found nothing."""
        async with self._answered:
            await self._answered.wait_for(lambda: self._empty_answers >= count)

    @staticmethod
    async def _answer_later(answer: asyncio.Future[list[Claim]], gate: asyncio.Event) -> list[Claim]:
        claims = await answer
        await gate.wait()
        return claims

    def _note(self, answer: asyncio.Future[list[Claim]]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        self._answers += 1
        self._empty_answers += not answer.result()
        noting = asyncio.ensure_future(self._tell())
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _tell(self) -> None:
        async with self._answered:
            self._answered.notify_all()
