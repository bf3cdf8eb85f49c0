"""All command classes of the package, for tests that compare them with those that an engine runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ingot
from ingot.kernel.commands import Command

SOURCE = Path(ingot.__file__).parent

CommandType = type[Command[Any]]


def all_command_types() -> list[CommandType]:
    """Return every command class that is defined in the package."""
    for path in SOURCE.rglob("*.py"):
        if "(Command[" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    return [kind for kind in Command.__subclasses__() if kind.__module__.startswith("ingot.")]
