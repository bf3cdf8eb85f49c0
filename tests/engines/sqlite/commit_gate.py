"""A gate that stops a commit of SQLite."""

from __future__ import annotations

import asyncio
import threading

from tests.factories import Bench
from tests.waiting import SECONDS_MAX


class CommitGate:
    """Keeps the writer in a commit until the gate opens, so that later commands form one group."""

    def __init__(self, bench: Bench) -> None:
        self._reached, self._open = threading.Event(), threading.Event()
        bench.sqlite.connection.set_commit_hook(self._on_commit)

    def _on_commit(self) -> bool:
        self._reached.set()
        assert self._open.wait(SECONDS_MAX)
        return False

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, SECONDS_MAX)

    def open(self) -> None:
        self._open.set()
