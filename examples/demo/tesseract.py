"""The program that reads pictures of text: found, or installed where that is ours to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Final

PROGRAM: Final = "tesseract"
PACKAGE: Final = "tesseract-ocr"
WITHOUT: Final = f"There is no {PROGRAM}: the scanned page is marked, not read. Debian's package is {PACKAGE}."


def get_reader(say: Callable[[str], None]) -> str | None:
    """Have tesseract here, from Debian's package when we are root. Answers what is missing without it, if it is."""
    if shutil.which(PROGRAM) is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say(f"Installing Debian's {PACKAGE}, which reads scanned pages.")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
            subprocess.run(["apt-get", *words], env=environment, capture_output=True, check=False)
    return None if shutil.which(PROGRAM) is not None else WITHOUT
