"""The programs behind the real provider, the browser and OCR, and the fonts of the samples: found, or installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts.make_samples import FONTS
from tests.postgres import install_debian

HERE: Final = Path(__file__).parent
PLACE: Final = Path(sys.prefix) / "oidc-provider"
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


def fonts() -> Path:
    """The folder of the fonts that samples are written with. Raises with a sentence that says how to get them."""
    if not FONTS.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian("fonts-dejavu-core")
    assert FONTS.exists(), f"There are no fonts in {FONTS} for the tests. Install Debian's package fonts-dejavu-core."
    return FONTS


def modules() -> Path:
    """The folder of the modules of our lock, installed by npm. Raises with a sentence when that cannot be."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = PLACE / "installed", (HERE / LOCK).read_bytes()
        if not done.exists() or done.read_bytes() != wanted:
            done.unlink(missing_ok=True)
            _install()
            done.write_bytes(wanted)
    return PLACE / "node_modules"


def _install() -> None:
    for name in ("package.json", LOCK):
        shutil.copyfile(HERE / name, PLACE / name)
    node()
    npm = _program("npm", package="npm")
    ran = subprocess.run([npm, *INSTALL[1:]], cwd=PLACE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (
        f"There is no OpenID provider for the tests: {' '.join(INSTALL)} in {PLACE} says {ran.stderr[-500:]}"
    )


def _program(name: str, *, package: str) -> str:
    path = shutil.which(name)
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(package)
        path = shutil.which(name)
    assert path is not None, f"There is no {name} for the tests. Install Debian's package {package}, or put it on PATH."
    return path
