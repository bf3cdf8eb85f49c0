"""Kills of a process that stores and deletes objects: acknowledged steps are never lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.object_kill_run import ObjectKillRun

KILLS = 50
ACKED = 400


@pytest.mark.long
def test_finished_objects_survive_kills_of_the_process(tmp_path: Path) -> None:
    run = ObjectKillRun(tmp_path / "life", random.randrange(2**32))
    while run.kills < KILLS or run.acked < ACKED:
        run.kill_at_random()
        run.check()
    print(f"{run.kills} kills, {run.acked} acknowledged steps, seed {run.seed}")
