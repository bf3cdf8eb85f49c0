"""OCR with tesseract, an external program that may not be installed."""

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
INSTALL_HINT: Final = "Install it on the machine of the worker: apt-get install tesseract-ocr"
PAGE_SECONDS_MAX: Final = 120.0
LIST_SECONDS_MAX: Final = 20.0
SINGLE_THREAD: Final = ("env", "OMP_THREAD_LIMIT=1")  # Jobs run in parallel, so a page must not use several cores.


class OcrFailed(Exception):
    """OCR of a page failed. Other pages may still be readable."""


@cache
def find_program() -> str | None:
    """Return the path of tesseract, or `None` if it is not installed."""
    return shutil.which(PROGRAM)


def require_program() -> str:
    """Return the path of tesseract. Raises `NoRetry` with installation instructions if it is missing."""
    if (program := find_program()) is None:
        raise NoRetry(f"OCR needs {PROGRAM}, which is not installed. {INSTALL_HINT}")
    return program


@cache
def installed_languages() -> frozenset[str]:
    """Return tesseract's names of the installed languages."""
    command = [require_program(), "--list-langs"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=LIST_SECONDS_MAX, check=False)
    return frozenset(completed.stdout.split("\n")[1:]) - {"", "osd"}


def check_languages(languages: Sequence[str]) -> None:
    """Raise `NoRetry` if a language is not installed."""
    for name in languages:
        if name not in installed_languages():
            installed = ", ".join(sorted(installed_languages())) or "none"
            raise NoRetry(
                f"the language {name!r} is not installed for tesseract; installed languages: {installed}. "
                f"Install it on the machine of the worker: apt-get install tesseract-ocr-{name.replace('_', '-')}"
            )


def recognize_text(picture: Image.Image, languages: Sequence[str], *, dpi: int) -> str:
    """Return the text in an image, line by line. Raises `OcrFailed` if that takes too long or fails."""
    image_data = io.BytesIO()
    picture.convert("L").save(image_data, "PPM")
    command = [*SINGLE_THREAD, require_program(), "stdin", "stdout", "-l", "+".join(languages), "--dpi", str(dpi)]
    try:
        completed = subprocess.run(
            command, input=image_data.getbuffer(), capture_output=True, timeout=PAGE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise OcrFailed(f"OCR took longer than {PAGE_SECONDS_MAX:g} seconds") from None
    if completed.returncode != 0:
        messages = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = messages[-1] if messages else "no error message"
        raise OcrFailed(f"tesseract failed with exit code {completed.returncode}: {reason}")
    return completed.stdout.decode("utf-8", "replace")
