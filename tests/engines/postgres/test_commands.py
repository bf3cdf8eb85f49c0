"""The table of commands: it has every command of the rooms, and runs no others."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import ingot
from ingot.engines.postgres.commands import COMMANDS
from ingot.kernel.clock import SystemClock
from ingot.kernel.commands import Command
from tests.factories import LEASE_SECONDS
from tests.postgres import open_postgres

SOURCE = Path(ingot.__file__).parent

Kind = type[Command[Any]]


class Unheard(Command[None], frozen=True):
    """A command that no engine has."""


def commands_of_rooms() -> Iterator[Kind]:
    """Every command that is defined in the package."""
    for path in SOURCE.rglob("*.py"):
        if "(Command[" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    return (kind for kind in Command.__subclasses__() if kind.__module__.startswith("ingot."))


async def test_the_store_runs_every_command_and_refuses_others(tmp_path: Path) -> None:
    store = await open_postgres(tmp_path, SystemClock(), lease_seconds=LEASE_SECONDS)
    try:
        assert set(commands_of_rooms()) == set(store.commands)
        assert len(store.commands) == len(COMMANDS) + len(store.jobs.commands) + len(store.blobs.commands)
        with pytest.raises(TypeError, match="Unheard"):
            await store.run(Unheard())
    finally:
        await store.close()


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_a_function_takes_its_command_and_returns_what_that_promises(kind: Kind) -> None:
    _, command, answer = get_type_hints(COMMANDS[kind]).values()
    assert (kind, *get_args(kind.__orig_bases__[0])) == (command, answer)  # type: ignore[attr-defined]
