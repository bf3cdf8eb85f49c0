"""A process that dies at the worst spots: inside a group, around its commit, in a checkpoint, while a store is made."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import kill_points
from tests.faults.store_kill_run import Life

pytestmark = pytest.mark.long

KILLS = 3
COUNTDOWN_MAX = 60


@pytest.mark.parametrize("point", kill_points.WORKING)
def test_a_store_survives_a_death(tmp_path: Path, point: str) -> None:
    seed = random.randrange(2**32)
    life = Life(tmp_path / "life", seed)
    chance = random.Random(seed)
    for _ in range(KILLS):
        life.kill_at(point, 1 + chance.randrange(3 if point in kill_points.RARE else COUNTDOWN_MAX))
        life.check()
    life.work(0.1)
    life.check()
    assert life.kills == KILLS


@pytest.mark.parametrize("point", kill_points.OPENING)
def test_a_store_survives_a_death_while_it_is_opened(tmp_path: Path, point: str) -> None:
    life = Life(tmp_path / "life", random.randrange(2**32))
    for _ in range(KILLS):
        life.kill_at_random()
        life.kill_at(point, 1)
        life.check()
    life.work(0.1)
    life.check()


@pytest.mark.parametrize("point", kill_points.CLOSING)
def test_a_store_survives_a_death_while_it_is_closed(tmp_path: Path, point: str) -> None:
    life = Life(tmp_path / "life", random.randrange(2**32))
    for _ in range(KILLS):
        life.kill_at(point, 1, seconds=0.1)
        life.check()
    life.work(0.1)
    life.check()


@pytest.mark.parametrize("point", kill_points.MAKING)
def test_a_store_survives_a_death_while_it_is_made(tmp_path: Path, point: str) -> None:
    life = Life(tmp_path / "life", random.randrange(2**32))
    life.kill_at(point, 1)
    life.check()
    life.work(0.1)
    life.check()
    assert life.history.acked > 0
