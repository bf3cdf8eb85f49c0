"""Programs that tests run, and the fonts of the samples: found, or installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.make_samples import FONTS
from tests.components import COMPONENTS, PROVIDER_FOLDER, expect_marker
from tests.postgres import install_debian

HERE: Final = Path(__file__).parent
LOCK: Final = "package-lock.json"
INSTALL: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def node() -> str:
    """The path of node. Raises with a sentence that says how to get it."""
    return _program("node", package="nodejs")


def browser() -> str:
    """The path of chromium. Raises with a sentence that says how to get it."""
    return _program("chromium", package="chromium")


def tesseract() -> str:
    """The path of tesseract. Raises with a sentence that says how to get it."""
    return _program("tesseract", package="tesseract-ocr")


def curl() -> str:
    """The path of curl. Raises with a sentence that says how to get it."""
    return _program("curl", package="curl")


def git() -> str:
    """The path of Git. Raises with a sentence that says how to get it."""
    return _program("git", package="git")


def fonts() -> Path:
    """The folder of the fonts that samples are written with. Raises with a sentence that says how to get them."""
    expect_marker("fonts")
    if not FONTS.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian("fonts-dejavu-core")
    assert FONTS.exists(), COMPONENTS["fonts"].sentence
    return FONTS


def modules() -> Path:
    """The folder of the modules of our lock, installed by npm. Raises with a sentence when that cannot be."""
    PROVIDER_FOLDER.mkdir(parents=True, exist_ok=True)
    with (PROVIDER_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = PROVIDER_FOLDER / "installed", (HERE / LOCK).read_bytes()
        if not done.exists() or done.read_bytes() != wanted:
            done.unlink(missing_ok=True)
            _install()
            done.write_bytes(wanted)
    return PROVIDER_FOLDER / "node_modules"


def _install() -> None:
    for name in ("package.json", LOCK):
        shutil.copyfile(HERE / name, PROVIDER_FOLDER / name)
    node()
    npm = _program("npm", package="npm")
    ran = subprocess.run([npm, *INSTALL[1:]], cwd=PROVIDER_FOLDER, capture_output=True, text=True, check=False)
    why = f"{' '.join(INSTALL)} in {PROVIDER_FOLDER} failed: {ran.stderr[-500:].strip()}"
    assert ran.returncode == 0, f"{COMPONENTS['provider'].sentence} ({why})"


def _program(name: str, *, package: str) -> str:
    expect_marker(name)
    path = shutil.which(name)
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(package)
        path = shutil.which(name)
    assert path is not None, COMPONENTS[name].sentence
    return path
