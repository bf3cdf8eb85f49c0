"""Kills of a server with blobs on PostgreSQL and with a bucket. `make soak` uses both together."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.blob_kill_run import BlobKillRun
from tests.faults.blob_server_process import BUCKET_KILL_POINTS, KILL_POINTS

pytestmark = pytest.mark.long

KILLS = 2
POINT_KILLS = 3
COUNTDOWN_MAX = 4


@pytest.mark.parametrize("where", ["postgres-local", "sqlite-s3"])
def test_acknowledged_blob_changes_survive_kills_on_postgres_and_with_a_bucket(tmp_path: Path, where: str) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    run = BlobKillRun(tmp_path / "life", seed, where=where)
    for point in chance.sample(BUCKET_KILL_POINTS if where.endswith("s3") else [*KILL_POINTS], POINT_KILLS):
        run.kill_at(point, 1 + chance.randrange(COUNTDOWN_MAX))
        run.check()
    while run.kills < KILLS + POINT_KILLS:
        run.kill_at_random()
        run.check()
    run.collect_all()
    print(f"{run.kills} kills, {run.acked} acknowledged calls, {run.unknown_objects} unknown objects, seed {run.seed}")
    assert run.acked > KILLS
    run.close()
