"""Finds converters by name: the built-in ones, and entry points of other packages."""

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
    """Create the converter with this name. Raises `NoRetry` if it is not installed.

    Jobs can select only installed converters by name, and so cannot make the worker import arbitrary code.
    """
    if built_in := BUILT_IN_CONVERTERS.get(name):
        return built_in()
    entry_points_by_name = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in entry_points_by_name:
        names = ", ".join(sorted(BUILT_IN_CONVERTERS | entry_points_by_name))
        raise NoRetry(f"converter {name[:64]!r} is not installed on this worker; use one of {names}")
    converter: Converter = entry_points_by_name[name].load()()
    return converter
