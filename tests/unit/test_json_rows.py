"""Rows as JSON text: how engines decode them as structs of the rooms."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from ingot.engines.json_rows import decode

MOMENT = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
MICROS = 1_767_225_600_123_456


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A struct with a required and an optional time."""

    name: str
    started: datetime
    ended: datetime | None = None
    note: msgspec.Raw = msgspec.Raw(b"null")


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A struct that contains structs with times."""

    tags: tuple[str, ...]
    first: Visit
    last: Visit | None = None


def row(started: int = MICROS, ended: str = "null", note: str = "null") -> str:
    return f'{{"name": "ann", "started": {started}, "ended": {ended}, "note": {note}, "other": 1}}'


def test_times_are_decoded_from_microseconds_and_other_columns_are_ignored() -> None:
    assert decode(Visit, row()) == Visit(name="ann", started=MOMENT)
    assert decode(Visit, row(ended=str(MICROS)).encode()) == Visit(name="ann", started=MOMENT, ended=MOMENT)


def test_a_list_is_decoded_to_a_struct_for_each_row() -> None:
    assert decode(list[Visit], f"[{row()}, {row()}]") == [Visit(name="ann", started=MOMENT)] * 2
    assert decode(list[Visit], "[]") == []


def test_times_of_nested_structs_are_decoded() -> None:
    text = f'{{"tags": ["a", "b"], "first": {row()}, "last": null}}'
    assert decode(Guest, text) == Guest(tags=("a", "b"), first=Visit(name="ann", started=MOMENT))
    text = f'{{"tags": [], "first": {row()}, "last": {row()}}}'
    assert decode(Guest, text).last == Visit(name="ann", started=MOMENT)


def test_raw_json_keeps_its_text() -> None:
    assert bytes(decode(Visit, row(note='{"b" :1.0,  "a":[]}')).note) == b'{"b" :1.0,  "a":[]}'


def test_types_without_times_are_decoded_unchanged() -> None:
    assert decode(dict[str, int], '{"a": 1}') == {"a": 1}
    assert decode(tuple[int, list[str]], '[1, ["a"]]') == (1, ["a"])


@pytest.mark.parametrize("text", ['{"name": "ann", "ended": null, "note": null}', row(ended='"soon"'), "[]"])
def test_a_row_that_does_not_match_its_type_is_rejected(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(Visit, text)
