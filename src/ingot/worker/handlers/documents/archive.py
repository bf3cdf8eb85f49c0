"""One archive of all that was made, the same bytes for the same files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
PACKED: Final = frozenset({".png", ".jpg"})  # Packing them again gains nothing.
READABLE: Final = 0o644 << 16


def pack(files: Iterable[Path], to: Path) -> Path:
    """Put files into an archive, each under its own name."""
    with zipfile.ZipFile(to, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, LONG_AGO)
            entry.external_attr = READABLE
            entry.compress_type = zipfile.ZIP_STORED if file.suffix in PACKED else zipfile.ZIP_DEFLATED
            entry.file_size = file.stat().st_size
            with file.open("rb") as source, archive.open(entry, "w") as sink:
                while part := source.read(1024 * 1024):
                    sink.write(part)
    return to
