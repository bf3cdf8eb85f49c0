"""Folders of attempts: each alone in its own, and nothing left of workers that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.worker.workdir import WorkdirRoot, remove_workdir

LEAVE = """
import os, signal
from ingot.worker.workdir import WorkdirRoot
room = WorkdirRoot().create_workdir()
(room / "kept").write_text("much")
print(room, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_every_attempt_has_a_folder_of_its_own() -> None:
    workshop = WorkdirRoot()
    rooms = [workshop.create_workdir() for _ in range(3)]
    assert len(set(rooms)) == 3
    (rooms[0] / "file").write_text("x")
    remove_workdir(rooms[0])
    assert [room.exists() for room in rooms] == [False, True, True]
    workshop.close()
    assert not rooms[1].parent.exists()


def test_what_a_killed_worker_left_goes_and_what_another_has_stays(tmp_path: Path) -> None:
    other = WorkdirRoot()
    kept = other.create_workdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LEAVE], env=environment, capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert (left / "kept").exists()
    mine = WorkdirRoot()
    mine.create_workdir()
    assert (left.exists(), kept.exists()) == (False, True)
    mine.close()
    other.close()


def test_what_is_no_folder_of_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "ingot-worker-of-somebody").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    (tmp_path / "ingot-worker-link").symlink_to(tmp_path / "elsewhere")
    workshop = WorkdirRoot()
    workshop.create_workdir()
    assert (tmp_path / "elsewhere" / "lock").exists()
    assert (tmp_path / "ingot-worker-of-somebody").exists()
    workshop.close()
