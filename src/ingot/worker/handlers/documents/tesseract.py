"""Reading pictures of text with tesseract, a program of its own, which may be missing."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Final

from PIL import Image

from ingot.worker.job import NoRetry

PROGRAM: Final = "tesseract"
INSTALL_HINT: Final = "Install it where the worker runs: apt-get install tesseract-ocr"
PAGE_SECONDS_MAX: Final = 120.0  # For a page.
LIST_SECONDS_MAX: Final = 20.0
SINGLE_THREAD: Final = ("env", "OMP_THREAD_LIMIT=1")  # Pages are read side by side by jobs, not by threads.


class OcrFailed(Exception):
    """A page could not be read; the others may be."""


@cache
def find_program() -> str | None:
    """Where tesseract is, if it is installed."""
    return shutil.which(PROGRAM)


def require_program() -> str:
    """Where tesseract is. Raises `NoRetry` that says how to get it."""
    if (found := find_program()) is None:
        raise NoRetry(f"reading pictures takes {PROGRAM}, which is not installed. {INSTALL_HINT}")
    return found


@cache
def installed_languages() -> frozenset[str]:
    """What tesseract can read."""
    command = [require_program(), "--list-langs"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIST_SECONDS_MAX, check=False)
    return frozenset(ran.stdout.split("\n")[1:]) - {"", "osd"}


def check_languages(wanted: Sequence[str]) -> None:
    """Raises `NoRetry` for a language that is not installed."""
    for name in wanted:
        if name not in installed_languages():
            there = ", ".join(sorted(installed_languages())) or "none"
            raise NoRetry(
                f"the option languages has {name!r}, which tesseract does not know here; there are {there}. "
                f"Install it where the worker runs: apt-get install tesseract-ocr-{name.replace('_', '-')}"
            )


def recognize_text(picture: Image.Image, wanted: Sequence[str], *, dpi: int) -> str:
    """The text in a picture, line by line. Raises `NotRead` when that takes too long or fails."""
    sent = io.BytesIO()
    picture.convert("L").save(sent, "PPM")
    command = [*SINGLE_THREAD, require_program(), "stdin", "stdout", "-l", "+".join(wanted), "--dpi", str(dpi)]
    try:
        ran = subprocess.run(
            command, input=sent.getbuffer(), capture_output=True, timeout=PAGE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise OcrFailed(f"it took longer than {PAGE_SECONDS_MAX:g} seconds") from None
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OcrFailed(f"tesseract ended with {ran.returncode}: {said[-1] if said else 'it said nothing'}")
    return ran.stdout.decode("utf-8", "replace")
