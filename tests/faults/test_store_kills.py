"""A process that works on a store is killed at random moments; acknowledged calls are never lost or doubled."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.recorded_calls import DEFINITIONS
from tests.faults.store_kill_run import StoreKillRun

# Each check reads the whole history, so short lives cost less. `make soak` has lives of 40 kills and longer work.
LIVES = 2
KILLS = 15
ACKED = 2_750
KILL_SECONDS_MAX = 0.3


@pytest.mark.long
@pytest.mark.parametrize("life_number", range(LIVES))
def test_acknowledged_calls_survive_kills_of_the_process(tmp_path: Path, life_number: int) -> None:
    run = StoreKillRun(tmp_path / "life", random.randrange(2**32))
    while run.kills < KILLS or run.history.acked < ACKED:
        run.kill_at_random(seconds_max=KILL_SECONDS_MAX)
        run.check()
    tables = run.drain()
    print(f"{run.kills} kills, {run.history.acked} acknowledged calls, {len(tables.jobs)} jobs, seed {run.seed}")
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}
    poisoned = [job for job in tables.jobs.values() if job.type == "poison"]
    assert poisoned
    cap = DEFINITIONS["poison"].crash_cap
    assert {(job.status, job.crashes, job.attempts) for job in poisoned} == {("dead", cap, cap)}
