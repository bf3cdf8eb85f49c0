"""Paused workers. `python -m tests.soak` pauses workers 300 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.paused_workers import run_paused_workers


@pytest.mark.long
def test_a_worker_that_pauses_past_its_lease_changes_nothing(tmp_path: Path) -> None:
    assert run_paused_workers(tmp_path, workers=5, rounds=6) == 30
