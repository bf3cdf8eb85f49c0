"""Loss of power: any part of the unsynced writes may be lost, but no acknowledged call."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingot.engines.sqlite.connection import WRITER_PRAGMAS
from tests.faults.invariants import Broken
from tests.faults.power_cut_run import PowerCutRun

CUTS = 80
RUNS_TO_CATCH_MAX = 20


@pytest.mark.long
async def test_acknowledged_calls_survive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    power_run = PowerCutRun(tmp_path / "outage", random.randrange(2**32))
    chance = random.Random(power_run.seed)
    while power_run.cuts < CUTS:
        monkeypatch.setitem(WRITER_PRAGMAS, "wal_autocheckpoint", chance.choice((8, 50, 4000)))
        await power_run.run()
    print(f"{power_run.cuts} cuts, {power_run.history.acked} acknowledged calls, seed {power_run.seed}")
    assert power_run.history.acked > 0


@pytest.mark.parametrize("synchronous", [0, 1], ids=["OFF", "NORMAL"])
async def test_the_check_fails_with_a_weaker_synchronous_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: int
) -> None:
    monkeypatch.setitem(WRITER_PRAGMAS, "synchronous", synchronous)
    with pytest.raises(Broken):
        await _until_caught(tmp_path)


async def test_the_check_fails_if_calls_return_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "Connection", CommitsLate)
    with pytest.raises(Broken, match=r"J1|J3|J4"):
        await _until_caught(tmp_path)


async def _until_caught(folder: Path) -> None:
    power_run = PowerCutRun(folder / "outage", random.randrange(2**32))
    for _ in range(RUNS_TO_CATCH_MAX):
        await power_run.run()


class CommitsLate(apsw.Connection):
    """Reports a commit as done, and commits when the next transaction begins."""

    owes_commit = False

    def execute(self, statements: str, *args: Any, **options: Any) -> apsw.Cursor:
        if statements == "COMMIT":
            self.owes_commit = True
            statements = "SELECT 1"
        elif self.owes_commit and statements.startswith("BEGIN"):
            super().execute("COMMIT")
            self.owes_commit = False
        return super().execute(statements, *args, **options)
