"""The converter `pdfium`: plain text of PDFs, including damaged ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pypdfium2

from ingot.worker.handlers.documents.markdown import escape_markdown
from ingot.worker.handlers.documents.ports import PageText, Unreadable


class PdfiumConverter:
    """Extracts paragraphs, without headings, tables or emphasis."""

    version = str(pypdfium2.PYPDFIUM_INFO)

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """See `Converter.pages`."""
        try:
            with pypdfium2.PdfDocument(path) as document:
                return [_page_text(document, number) for number in numbers]
        except pypdfium2.PdfiumError as error:
            raise Unreadable(str(error)) from error


def _page_text(document: pypdfium2.PdfDocument, number: int) -> PageText:
    page = document[number - 1]
    try:
        text = page.get_textpage().get_text_bounded()
    finally:
        page.close()
    return PageText(markdown=escape_markdown(text), is_picture=not text.strip())
