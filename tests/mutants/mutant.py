"""Planted bugs, and how they are planted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import ingot

PACKAGE = Path(ingot.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of one place in the package. `caught_by` is a pytest selection that must fail with it."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    caught_by: str


def plant(folder: Path, mutant: Mutant | None = None) -> Path:
    """Copy the package with the bug into a folder, and return the folder to import it from."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)  # Compiled files are copied too, and stay valid because modification times are kept.
    if mutant is not None:
        file = copy / mutant.file
        text = file.read_text(encoding="utf-8")
        occurrences = text.count(mutant.old)
        assert occurrences == 1, (
            f"{mutant.name}: its old text occurs {occurrences} times in {mutant.file}; update the entry"
        )
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return folder
