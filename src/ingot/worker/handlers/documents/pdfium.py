"""Plain text of PDFs by pdfium, which reads what is damaged too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pypdfium2

from ingot.worker.handlers.documents.markdown import plain
from ingot.worker.handlers.documents.ports import PageText, Unreadable


class PlainText:
    """Paragraphs without headings, tables and emphasis."""

    version = str(pypdfium2.PYPDFIUM_INFO)

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """See `Converter.pages`."""
        try:
            with pypdfium2.PdfDocument(path) as document:
                return [_page(document, number) for number in numbers]
        except pypdfium2.PdfiumError as error:
            raise Unreadable(str(error)) from error


def _page(document: pypdfium2.PdfDocument, number: int) -> PageText:
    page = document[number - 1]
    try:
        text = page.get_textpage().get_text_bounded()
    finally:
        page.close()
    return PageText(markdown=plain(text), is_picture=not text.strip())
