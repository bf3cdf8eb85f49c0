"""A server with blobs dies at random moments and at the worst ones, and its clients find what they were told."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.blob_kill_run import BlobLife
from tests.faults.blob_server_process import POINTS

pytestmark = pytest.mark.long

KILLS = 30
REAL_KILLS = 3
POINT_KILLS = 3
COUNTDOWN_MAX = 6


def test_nothing_acknowledged_is_lost_however_often_the_server_is_killed(tmp_path: Path) -> None:
    life = BlobLife(tmp_path / "life", random.randrange(2**32))
    while life.kills < KILLS:
        life.kill_at_random()
        life.check()
    life.rest()
    print(f"{life.kills} kills, {life.acked} acknowledged calls, seed {life.seed}")
    assert life.acked > KILLS


def test_the_same_of_a_server_that_was_started_as_people_do(tmp_path: Path) -> None:
    life = BlobLife(tmp_path / "life", random.randrange(2**32), real=True)
    while life.kills < REAL_KILLS:
        life.kill_at_random()
        life.check()


@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_dies_there_leaves_all_or_nothing(tmp_path: Path, point: str) -> None:
    seed = random.randrange(2**32)
    life = BlobLife(tmp_path / "life", seed)
    chance = random.Random(seed)
    for _ in range(POINT_KILLS):
        life.kill_at(point, 1 + chance.randrange(COUNTDOWN_MAX))
        life.check()
    life.kill_at_random()  # Clients look at what is left.
    life.check()
