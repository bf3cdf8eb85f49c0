"""What a planted bug is, and how it is planted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import ingot

PACKAGE = Path(ingot.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One place in the package, changed. `caught_by` is a selection for pytest that must fail on it."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    caught_by: str


def plant(folder: Path, mutant: Mutant | None = None) -> Path:
    """Copy the package below a folder, with the bug in it, and answer what to import it from."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)  # What is compiled comes along, and is known by the time of its source.
    if mutant is not None:
        file = copy / mutant.file
        text = file.read_text(encoding="utf-8")
        found = text.count(mutant.old)
        assert found == 1, f"{mutant.name}: its old text occurs {found} times in {mutant.file}; plant it anew"
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return folder
