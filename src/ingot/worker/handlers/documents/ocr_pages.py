"""Images of pages for OCR: the frames of an image file, or the rendered pages of a PDF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pypdfium2
from PIL import Image, ImageOps, UnidentifiedImageError

from ingot.worker.handlers.documents.pdf_file import PAGES_MAX, looks_like_pdf, open_pdf, pdf_title
from ingot.worker.handlers.documents.pictures import RENDERED_PIXELS_MAX, check_size, render_page
from ingot.worker.job import NoRetry

PICTURE_FORMATS: Final = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")


class OcrPages(Protocol):
    """The pages of a file as images."""

    count: int
    title: str

    def page_image(self, number: int) -> Image.Image:
        """Return a page, counted from 1, in greyscale. Raises `NoRetry` if it cannot be decoded or is too large."""


@contextmanager
def open_ocr_pages(path: Path, *, dpi: int) -> Iterator[OcrPages]:
    """Open an image or a PDF. Raises `NoRetry` if the file is neither."""
    if path.stat().st_size == 0:
        raise NoRetry("the file is empty: it has 0 bytes")
    if looks_like_pdf(path):
        with open_pdf(path) as document:
            yield PdfOcrPages(document, dpi)
        return
    Image.MAX_IMAGE_PIXELS = None  # Replaced by `check_size`, which runs before a page is decoded.
    try:
        picture = Image.open(path, formats=PICTURE_FORMATS)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise NoRetry(
            f"the file is not in a supported format; these are {', '.join(PICTURE_FORMATS)} and PDF"
        ) from error
    with picture:
        yield PictureOcrPages(picture)


class PdfOcrPages:
    """The pages of a PDF."""

    def __init__(self, document: pypdfium2.PdfDocument, dpi: int) -> None:
        self._document, self._dpi = document, dpi
        self.count, self.title = len(document), pdf_title(document)

    def page_image(self, number: int) -> Image.Image:
        """See `OcrPages.page_image`."""
        try:
            page = self._document[number - 1]
        except pypdfium2.PdfiumError as error:
            raise NoRetry(f"the file is damaged: page {number} cannot be read") from error
        try:
            return render_page(page, number, dpi=self._dpi)
        finally:
            page.close()


class PictureOcrPages:
    """The frames of an image file. A TIFF can have several."""

    title = ""

    def __init__(self, picture: Image.Image) -> None:
        self._picture = picture
        try:
            self.count = int(getattr(picture, "n_frames", 1))
        except (OSError, ValueError, SyntaxError) as error:
            raise NoRetry("the image is damaged: its pages cannot be counted") from error
        if self.count > PAGES_MAX:
            raise NoRetry(f"the file has {self.count} pages, but at most {PAGES_MAX} are supported; split it")

    def page_image(self, number: int) -> Image.Image:
        """See `OcrPages.page_image`."""
        try:
            self._picture.seek(number - 1)
            check_size(*self._picture.size, f"page {number}")
            upright = ImageOps.exif_transpose(self._picture.copy())
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise NoRetry(f"the image is damaged: page {number} cannot be decoded") from error
        pixels = upright.width * upright.height
        if pixels > RENDERED_PIXELS_MAX:
            shrink = (RENDERED_PIXELS_MAX / pixels) ** 0.5
            upright.thumbnail((int(upright.width * shrink), int(upright.height * shrink)))
        return _flatten_to_grey(upright)


def _flatten_to_grey(picture: Image.Image) -> Image.Image:
    """Convert an image to greyscale on a white background."""
    if not picture.has_transparency_data:
        return picture.convert("L")
    rgba = picture.convert("RGBA")
    paper = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(paper, rgba).convert("L")
