"""Commands of the SQLite engine: each is either a write or a read."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from ingot.engines.sqlite.commands import READS, WRITES
from tests.command_types import CommandType, all_command_types


def test_every_command_is_a_write_or_a_read() -> None:
    assert sorted(map(str, all_command_types())) == sorted(map(str, [*WRITES, *READS]))


@pytest.mark.parametrize("kind", READS, ids=lambda kind: kind.__name__)
def test_the_function_of_a_read_has_the_types_of_its_command(kind: CommandType) -> None:
    _, command, result = get_type_hints(READS[kind]).values()
    assert (kind, *get_args(kind.__orig_bases__[0])) == (command, result)  # type: ignore[attr-defined]
