"""Ranges of keys that a caller may list."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SEPARATORS = (".", "/")  # They end a segment of a key.


class KeyRange(msgspec.Struct, frozen=True):
    """All keys that begin with `start`, or only the key with this name."""

    start: str
    is_one_key: bool = False


def key_ranges(prefix: str, within: Sequence[str] | None) -> list[KeyRange]:
    """Return the ranges of keys that begin with `prefix`, and in whole segments with one of the names in `within`.

    The ranges do not overlap and are in the order of their keys. `None` allows all keys.
    """
    if within is None or any(prefix.startswith(f"{name}{end}") for name in within for end in SEPARATORS):
        return [KeyRange(prefix)]
    ranges: list[KeyRange] = []
    for name in {name for name in within if name.startswith(prefix) and not _is_below_another(name, within)}:
        ranges += [KeyRange(name, is_one_key=True), *(KeyRange(f"{name}{end}") for end in SEPARATORS)]
    return sorted(ranges, key=lambda key_range: key_range.start)


def _is_below_another(name: str, names: Sequence[str]) -> bool:
    return any(name.startswith(f"{other}{end}") for other in names for end in SEPARATORS)
