"""The table of commands: it contains every command of the rooms and no others."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from ingot.engines.postgres.commands import COMMANDS
from ingot.kernel.clock import SystemClock
from ingot.kernel.commands import Command
from tests.command_types import CommandType, all_command_types
from tests.factories import LEASE_SECONDS
from tests.postgres import open_postgres


class UnknownCommand(Command[None], frozen=True):
    """A command that no engine implements."""


async def test_the_store_runs_every_command_and_refuses_others(tmp_path: Path) -> None:
    store = await open_postgres(tmp_path, SystemClock(), lease_seconds=LEASE_SECONDS)
    try:
        assert set(all_command_types()) == set(store.commands)
        assert len(store.commands) == len(COMMANDS) + len(store.batches.commands)
        with pytest.raises(TypeError, match="UnknownCommand"):
            await store.run(UnknownCommand())
    finally:
        await store.close()


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_function_has_the_types_of_its_command(kind: CommandType) -> None:
    _, command, result = get_type_hints(COMMANDS[kind]).values()
    assert (kind, *get_args(kind.__orig_bases__[0])) == (command, result)  # type: ignore[attr-defined]
