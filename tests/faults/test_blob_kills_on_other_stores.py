"""The same deaths of a server with blobs, on the other engine and with the other store; on both in the soak."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.blob_kill_run import BlobLife
from tests.faults.blob_server_process import POINTS, POINTS_OF_BUCKETS

pytestmark = pytest.mark.long

KILLS = 2
POINT_KILLS = 3
COUNTDOWN_MAX = 4


@pytest.mark.parametrize("where", ["postgres-local", "sqlite-s3"])
def test_nothing_acknowledged_is_lost_on_the_other_engine_and_store(tmp_path: Path, where: str) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    life = BlobLife(tmp_path / "life", seed, where=where)
    for point in chance.sample(POINTS_OF_BUCKETS if where.endswith("s3") else [*POINTS], POINT_KILLS):
        life.kill_at(point, 1 + chance.randrange(COUNTDOWN_MAX))
        life.check()
    while life.kills < KILLS + POINT_KILLS:
        life.kill_at_random()
        life.check()
    life.rest()
    print(f"{life.kills} kills, {life.acked} acknowledged calls, {life.strangers} unknown objects, seed {life.seed}")
    assert life.acked > KILLS
    life.close()
