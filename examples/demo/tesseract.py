"""Finds the OCR program tesseract, and installs it if that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Final

PROGRAM: Final = "tesseract"
PACKAGE: Final = "tesseract-ocr"
MISSING_NOTICE: Final = (
    f"{PROGRAM} is not installed, so the scanned page is marked but not read. The Debian package is {PACKAGE}."
)


def ensure_tesseract(print_message: Callable[[str], None]) -> str | None:
    """Install tesseract with apt-get if it is missing and this user is root. Return a notice if it is still missing."""
    if shutil.which(PROGRAM) is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        print_message(f"Installing the Debian package {PACKAGE}, which reads scanned pages.")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
            subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, check=False)
    return None if shutil.which(PROGRAM) is not None else MISSING_NOTICE
