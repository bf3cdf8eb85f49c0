"""Rows as JSON text: how engines decode them as structs of the rooms."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from ingot.engines.json_rows import decode

MOMENT = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
MICROS = 1_767_225_600_123_456


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A struct with an instant that is always there and one that may be missing."""

    name: str
    began: datetime
    ended: datetime | None = None
    note: msgspec.Raw = msgspec.Raw(b"null")


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A struct with instants in what it holds."""

    tags: tuple[str, ...]
    first: Visit
    last: Visit | None = None


def row(began: int = MICROS, ended: str = "null", note: str = "null") -> str:
    return f'{{"name": "ann", "began": {began}, "ended": {ended}, "note": {note}, "other": 1}}'


def test_instants_are_microseconds_and_other_columns_are_left_out() -> None:
    assert decode(Visit, row()) == Visit(name="ann", began=MOMENT)
    assert decode(Visit, row(ended=str(MICROS)).encode()) == Visit(name="ann", began=MOMENT, ended=MOMENT)


def test_a_list_has_a_struct_for_each_row() -> None:
    assert decode(list[Visit], f"[{row()}, {row()}]") == [Visit(name="ann", began=MOMENT)] * 2
    assert decode(list[Visit], "[]") == []


def test_structs_inside_a_struct_have_instants_too() -> None:
    text = f'{{"tags": ["a", "b"], "first": {row()}, "last": null}}'
    assert decode(Guest, text) == Guest(tags=("a", "b"), first=Visit(name="ann", began=MOMENT))
    text = f'{{"tags": [], "first": {row()}, "last": {row()}}}'
    assert decode(Guest, text).last == Visit(name="ann", began=MOMENT)


def test_raw_json_stays_as_it_is_written() -> None:
    assert bytes(decode(Visit, row(note='{"b" :1.0,  "a":[]}')).note) == b'{"b" :1.0,  "a":[]}'


def test_types_without_instants_are_decoded_as_they_are() -> None:
    assert decode(dict[str, int], '{"a": 1}') == {"a": 1}
    assert decode(tuple[int, list[str]], '[1, ["a"]]') == (1, ["a"])


@pytest.mark.parametrize("text", ['{"name": "ann", "ended": null, "note": null}', row(ended='"soon"'), "[]"])
def test_a_row_that_is_not_of_the_type_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(Visit, text)
