"""Converters by name: ours, and those that other packages bring as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from ingot.worker.handlers.documents.inspector import Inspector
from ingot.worker.handlers.documents.pdfium import PlainText
from ingot.worker.handlers.documents.ports import Converter
from ingot.worker.job import NoRetry

GROUP: Final = "ingot.converters"
OURS: Final[dict[str, Callable[[], Converter]]] = {"inspector": Inspector, "pdfium": PlainText}


def converter_named(name: str) -> Converter:
    """A new converter of this name. Raises `NoRetry` for one that is not installed: a name is all that a job says."""
    if ours := OURS.get(name):
        return ours()
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        names = ", ".join(sorted(OURS | found))
        raise NoRetry(f"the option converter is {name[:64]!r}, which is not installed here; there are {names}")
    made: Converter = found[name].load()()
    return made
