"""Commands on SQLite: every one is a write or a read."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from ingot.engines.sqlite.commands import READS, WRITES
from tests.command_types import CommandType, all_command_types


def test_every_command_is_a_write_or_a_read() -> None:
    assert sorted(map(str, all_command_types())) == sorted(map(str, [*WRITES, *READS]))


@pytest.mark.parametrize("kind", READS, ids=lambda kind: kind.__name__)
def test_a_read_takes_its_command_and_returns_what_that_promises(kind: CommandType) -> None:
    _, command, answer = get_type_hints(READS[kind]).values()
    assert (kind, *get_args(kind.__orig_bases__[0])) == (command, answer)  # type: ignore[attr-defined]
