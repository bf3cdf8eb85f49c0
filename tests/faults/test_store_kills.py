"""A process doing work is killed at random moments, again and again, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.recorded_calls import DEFINITIONS
from tests.faults.store_kill_run import Life

# Each check reads the whole history, so short lives cost less. `make soak` has lives of 40 kills and longer work.
LIVES = 2
KILLS = 15
ACKED = 2_750
KILL_SECONDS_MAX = 0.3


@pytest.mark.long
@pytest.mark.parametrize("life_number", range(LIVES))
def test_nothing_acknowledged_is_lost_however_often_the_process_is_killed(tmp_path: Path, life_number: int) -> None:
    life = Life(tmp_path / "life", random.randrange(2**32))
    while life.kills < KILLS or life.history.acked < ACKED:
        life.kill_at_random(seconds_max=KILL_SECONDS_MAX)
        life.check()
    tables = life.drain()
    print(f"{life.kills} kills, {life.history.acked} acknowledged calls, {len(tables.jobs)} jobs, seed {life.seed}")
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}
    poisoned = [job for job in tables.jobs.values() if job.type == "poison"]
    assert poisoned
    cap = DEFINITIONS["poison"].crash_cap
    assert {(job.status, job.crashes, job.attempts) for job in poisoned} == {("dead", cap, cap)}
