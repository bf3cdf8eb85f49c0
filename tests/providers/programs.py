"""Programs that tests run, and the fonts of the samples. Missing ones are installed if possible."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.make_samples import FONTS
from tests.components import COMPONENTS, PROVIDER_FOLDER, expect_marker, find_program
from tests.postgres import install_debian

HERE: Final = Path(__file__).parent
LOCK: Final = "package-lock.json"
INSTALL: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def node() -> str:
    """Return the path of node. Raises an error that explains how to install it."""
    return _program("node", package="nodejs")


def browser() -> str:
    """Return the path of chromium. Raises an error that explains how to install it."""
    return _program("chromium", package="chromium")


def tesseract() -> str:
    """Return the path of tesseract. Raises an error that explains how to install it."""
    return _program("tesseract", package="tesseract-ocr")


def curl() -> str:
    """Return the path of curl. Raises an error that explains how to install it."""
    return _program("curl", package="curl")


def git() -> str:
    """Return the path of Git. Raises an error that explains how to install it."""
    return _program("git", package="git")


def nginx() -> str:
    """Return the path of nginx. Raises an error that explains how to install it."""
    return _program("nginx", package="nginx-light")


def fonts() -> Path:
    """Return the folder of the fonts that the samples use. Raises an error that explains how to install them."""
    expect_marker("fonts")
    if not FONTS.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian("fonts-dejavu-core")
    assert FONTS.exists(), COMPONENTS["fonts"].sentence
    return FONTS


def modules() -> Path:
    """Install the locked npm packages if necessary, and return their folder. Raises an error if that fails."""
    PROVIDER_FOLDER.mkdir(parents=True, exist_ok=True)
    with (PROVIDER_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = PROVIDER_FOLDER / "installed", (HERE / LOCK).read_bytes()
        if not stamp.exists() or stamp.read_bytes() != wanted:
            stamp.unlink(missing_ok=True)
            _install()
            stamp.write_bytes(wanted)
    return PROVIDER_FOLDER / "node_modules"


def _install() -> None:
    for name in ("package.json", LOCK):
        shutil.copyfile(HERE / name, PROVIDER_FOLDER / name)
    node()
    npm = _program("npm", package="npm")
    result = subprocess.run([npm, *INSTALL[1:]], cwd=PROVIDER_FOLDER, capture_output=True, text=True, check=False)
    reason = f"{' '.join(INSTALL)} in {PROVIDER_FOLDER} failed: {result.stderr[-500:].strip()}"
    assert result.returncode == 0, f"{COMPONENTS['provider'].sentence} ({reason})"


def _program(name: str, *, package: str) -> str:
    expect_marker(name)
    path = find_program(name)
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(package)
        path = find_program(name)
    assert path is not None, COMPONENTS[name].sentence
    return path
