"""A server with blobs is killed at random moments and at named points; acknowledged calls stay in effect."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.blob_kill_run import BlobKillRun
from tests.faults.blob_server_process import KILL_POINTS

pytestmark = pytest.mark.long

KILLS = 30
REAL_KILLS = 3
POINT_KILLS = 3
COUNTDOWN_MAX = 6


def test_acknowledged_blob_changes_survive_kills_of_the_server(tmp_path: Path) -> None:
    run = BlobKillRun(tmp_path / "life", random.randrange(2**32))
    while run.kills < KILLS:
        run.kill_at_random()
        run.check()
    run.collect_all()
    print(f"{run.kills} kills, {run.acked} acknowledged calls, seed {run.seed}")
    assert run.acked > KILLS


def test_acknowledged_blob_changes_survive_kills_of_the_serve_command(tmp_path: Path) -> None:
    run = BlobKillRun(tmp_path / "life", random.randrange(2**32), real=True)
    while run.kills < REAL_KILLS:
        run.kill_at_random()
        run.check()


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_server_killed_at_a_named_point_keeps_acknowledged_blob_changes(tmp_path: Path, point: str) -> None:
    seed = random.randrange(2**32)
    run = BlobKillRun(tmp_path / "life", seed)
    chance = random.Random(seed)
    for _ in range(POINT_KILLS):
        run.kill_at(point, 1 + chance.randrange(COUNTDOWN_MAX))
        run.check()
    run.kill_at_random()  # The clients of this run check what they find.
    run.check()
