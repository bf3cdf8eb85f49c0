"""The power goes: whatever part of the unsynced writes is lost, nothing acknowledged is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingot.engines.sqlite.connection import WRITER_PRAGMAS
from tests.faults.invariants import Broken
from tests.faults.power_cut_run import Outage

CUTS = 80
RUNS_TO_CATCH_MAX = 20


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_when_the_power_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(tmp_path / "outage", random.randrange(2**32))
    chance = random.Random(outage.seed)
    while outage.cuts < CUTS:
        monkeypatch.setitem(WRITER_PRAGMAS, "wal_autocheckpoint", chance.choice((8, 50, 4000)))
        await outage.run()
    print(f"{outage.cuts} cuts, {outage.history.acked} acknowledged calls, seed {outage.seed}")
    assert outage.history.acked > 0


@pytest.mark.parametrize("synchronous", [0, 1], ids=["OFF", "NORMAL"])
async def test_a_weaker_sync_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: int) -> None:
    monkeypatch.setitem(WRITER_PRAGMAS, "synchronous", synchronous)
    with pytest.raises(Broken):
        await _until_caught(tmp_path)


async def test_an_answer_before_the_commit_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "Connection", Hasty)
    with pytest.raises(Broken, match=r"J1|J3|J4"):
        await _until_caught(tmp_path)


async def _until_caught(folder: Path) -> None:
    outage = Outage(folder / "outage", random.randrange(2**32))
    for _ in range(RUNS_TO_CATCH_MAX):
        await outage.run()


class Hasty(apsw.Connection):
    """Says that a commit is done, and does it when the next transaction begins."""

    owes_commit = False

    def execute(self, statements: str, *args: Any, **options: Any) -> apsw.Cursor:
        if statements == "COMMIT":
            self.owes_commit = True
            statements = "SELECT 1"
        elif self.owes_commit and statements.startswith("BEGIN"):
            super().execute("COMMIT")
            self.owes_commit = False
        return super().execute(statements, *args, **options)
