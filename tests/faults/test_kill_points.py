"""Kills at named points: inside a group, around its commit, in a checkpoint, while a store is opened or created."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import kill_points
from tests.faults.store_kill_run import StoreKillRun

pytestmark = pytest.mark.long

KILLS = 3
COUNTDOWN_MAX = 60


@pytest.mark.parametrize("point", kill_points.WORKING)
def test_a_store_survives_a_kill_at_a_named_point(tmp_path: Path, point: str) -> None:
    seed = random.randrange(2**32)
    run = StoreKillRun(tmp_path / "life", seed)
    chance = random.Random(seed)
    for _ in range(KILLS):
        run.kill_at(point, 1 + chance.randrange(3 if point in kill_points.RARE else COUNTDOWN_MAX))
        run.check()
    run.work(0.1)
    run.check()
    assert run.kills == KILLS


@pytest.mark.parametrize("point", kill_points.OPENING)
def test_a_store_survives_a_kill_while_it_is_opened(tmp_path: Path, point: str) -> None:
    run = StoreKillRun(tmp_path / "life", random.randrange(2**32))
    for _ in range(KILLS):
        run.kill_at_random()
        run.kill_at(point, 1)
        run.check()
    run.work(0.1)
    run.check()


@pytest.mark.parametrize("point", kill_points.CLOSING)
def test_a_store_survives_a_kill_while_it_is_closed(tmp_path: Path, point: str) -> None:
    run = StoreKillRun(tmp_path / "life", random.randrange(2**32))
    for _ in range(KILLS):
        run.kill_at(point, 1, seconds=0.1)
        run.check()
    run.work(0.1)
    run.check()


@pytest.mark.parametrize("point", kill_points.CREATING)
def test_a_store_survives_a_kill_while_it_is_created(tmp_path: Path, point: str) -> None:
    run = StoreKillRun(tmp_path / "life", random.randrange(2**32))
    run.kill_at(point, 1)
    run.check()
    run.work(0.1)
    run.check()
    assert run.history.acked > 0
