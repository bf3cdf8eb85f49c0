"""Converters by name: ours, and those that other packages bring as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from ingot.worker.handlers.documents.pdf_inspector_converter import PdfInspectorConverter
from ingot.worker.handlers.documents.pdfium_converter import PdfiumConverter
from ingot.worker.handlers.documents.ports import Converter
from ingot.worker.job import NoRetry

ENTRY_POINT_GROUP: Final = "ingot.converters"
BUILT_IN_CONVERTERS: Final[dict[str, Callable[[], Converter]]] = {
    "inspector": PdfInspectorConverter,
    "pdfium": PdfiumConverter,
}


def load_converter(name: str) -> Converter:
    """A new converter of this name. Raises `NoRetry` for one that is not installed: a name is all that a job says."""
    if ours := BUILT_IN_CONVERTERS.get(name):
        return ours()
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        names = ", ".join(sorted(BUILT_IN_CONVERTERS | found))
        raise NoRetry(f"the option converter is {name[:64]!r}, which is not installed here; there are {names}")
    made: Converter = found[name].load()()
    return made
