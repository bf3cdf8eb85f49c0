"""Commands: an engine runs every one of them, as a write or as a read."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import ingot
from ingot.engines.sqlite import commands as sqlite
from ingot.kernel.commands import Command

SOURCE = Path(ingot.__file__).parent

Kind = type[Command[Any]]
TABLES: dict[str, tuple[Mapping[Kind, Callable[..., Any]], ...]] = {"sqlite": (sqlite.WRITES, sqlite.READS)}


@pytest.fixture(scope="module")
def kinds() -> list[Kind]:
    """Every kind of command that is defined in the package."""
    for path in SOURCE.rglob("*.py"):
        if "(Command[" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    return [kind for kind in _below(Command) if kind.__module__.startswith("ingot.")]


def _below(parent: Kind) -> Iterator[Kind]:
    for kind in parent.__subclasses__():
        yield kind
        yield from _below(kind)


@pytest.mark.parametrize("engine", TABLES)
def test_every_command_is_in_exactly_one_table_of_an_engine(engine: str, kinds: list[Kind]) -> None:
    listed = [kind for table in TABLES[engine] for kind in table]
    assert sorted(map(str, kinds)) == sorted(map(str, listed))


@pytest.mark.parametrize("kind", sqlite.READS, ids=lambda kind: kind.__name__)
def test_a_read_takes_its_command_and_returns_what_that_promises(kind: Kind) -> None:
    _, command, answer = get_type_hints(sqlite.READS[kind]).values()
    assert (kind, *get_args(kind.__orig_bases__[0])) == (command, answer)  # type: ignore[attr-defined]
