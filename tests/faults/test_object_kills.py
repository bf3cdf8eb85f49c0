"""A process that stores and deletes objects is killed at random moments, and nothing acknowledged is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.object_kill_run import ObjectLife

KILLS = 50
ACKED = 400


@pytest.mark.long
def test_no_finished_object_is_lost_however_often_the_process_is_killed(tmp_path: Path) -> None:
    life = ObjectLife(tmp_path / "life", random.randrange(2**32))
    while life.kills < KILLS or life.acked < ACKED:
        life.kill_at_random()
        life.check()
    print(f"{life.kills} kills, {life.acked} acknowledged steps, seed {life.seed}")
