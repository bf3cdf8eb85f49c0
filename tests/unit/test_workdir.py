"""Working folders: each attempt has its own, and those of killed workers are deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.worker.workdir import WorkdirRoot, remove_workdir

KILLED_WORKER = """
import os, signal
from ingot.worker.workdir import WorkdirRoot
workdir = WorkdirRoot().create_workdir()
(workdir / "file").write_text("data")
print(workdir, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_every_attempt_has_its_own_working_folder() -> None:
    root = WorkdirRoot()
    workdirs = [root.create_workdir() for _ in range(3)]
    assert len(set(workdirs)) == 3
    (workdirs[0] / "file").write_text("x")
    remove_workdir(workdirs[0])
    assert [workdir.exists() for workdir in workdirs] == [False, True, True]
    root.close()
    assert not workdirs[1].parent.exists()


def test_folders_of_a_killed_worker_are_deleted_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    other = WorkdirRoot()
    running_workdir = other.create_workdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WORKER], env=environment, capture_output=True, text=True, check=False
    )
    killed_workdir = Path(killed.stdout.strip())
    assert (killed_workdir / "file").exists()
    root = WorkdirRoot()
    root.create_workdir()
    assert (killed_workdir.exists(), running_workdir.exists()) == (False, True)
    root.close()
    other.close()


def test_folders_of_other_programs_are_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "ingot-worker-of-somebody").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    (tmp_path / "ingot-worker-link").symlink_to(tmp_path / "elsewhere")
    root = WorkdirRoot()
    root.create_workdir()
    assert (tmp_path / "elsewhere" / "lock").exists()
    assert (tmp_path / "ingot-worker-of-somebody").exists()
    root.close()
