"""Extracts pictures from PDF pages and renders pages as images, with limits on their size."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pypdfium2
from PIL import Image
from pypdfium2 import raw

from ingot.worker.job import NoRetry

PICTURE_PIXELS_MAX: Final = 100_000_000  # For a decoded picture: 400 MB with four bytes per pixel.
RENDERED_PIXELS_MAX: Final = 25_000_000  # For a rendered page: nearly A3 at 400 dpi.
SIDE_PIXELS_MIN: Final = 8  # Smaller images are lines or dots and are ignored.
PAGE_PICTURES_MAX: Final = 200
FORMS_DEPTH_MAX: Final = 3
POINTS_PER_INCH: Final = 72
FULL_PAGE_SHARE: Final = 0.8  # A picture that covers more of a page than this is a scan of the page.
ABOVE_POINTS: Final = 40
MARGIN_POINTS: Final = 20
JPEG_MODES: Final = frozenset({"1", "L", "LA", "RGB", "RGBA", "P", "I;16"})


class ExtractedPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture from a page: its bytes, the suffix of its format, and the text above it."""

    data: bytes
    suffix: str
    above: str


def check_size(width: int, height: int, where: str) -> None:
    """Raise `NoRetry` if a picture is too large to be decoded."""
    if width * height > PICTURE_PIXELS_MAX:
        raise NoRetry(
            f"{where} has an image of {width} × {height} pixels, "
            f"but at most {PICTURE_PIXELS_MAX // 1_000_000} million pixels are supported"
        )


def render_page(page: pypdfium2.PdfPage, number: int, *, dpi: int) -> Image.Image:
    """Render a page in greyscale, at a lower resolution if it would exceed `RENDERED_PIXELS_MAX`.

    Raises `NoRetry` if the page contains a picture that is too large.
    """
    for _ in _image_objects(page, number):
        pass
    width, height = page.get_size()
    scale = dpi / POINTS_PER_INCH
    if (pixels := width * height * scale**2) > RENDERED_PIXELS_MAX:
        scale *= (RENDERED_PIXELS_MAX / pixels) ** 0.5
    picture: Image.Image = page.render(scale=scale, grayscale=True).to_pil()
    return picture


def extract_pictures(page: pypdfium2.PdfPage, number: int, *, skip_full_page: bool) -> Iterator[ExtractedPicture]:
    """Yield the pictures of a page, with `skip_full_page` without scans of it. Raises `NoRetry` if one is too large."""
    width, height = page.get_size()
    texts: Any = None
    for count, image in enumerate(_image_objects(page, number)):
        if count >= PAGE_PICTURES_MAX:
            return
        left, bottom, right, top = image.get_bounds()
        if skip_full_page and (right - left) * (top - bottom) > FULL_PAGE_SHARE * width * height:
            continue
        if (extracted := _extract_image(image)) is not None:
            texts = texts or page.get_textpage()
            yield ExtractedPicture(
                data=extracted[0], suffix=extracted[1], above=_text_above(texts, left, right, top, height)
            )


def _image_objects(page: pypdfium2.PdfPage, number: int) -> Iterator[Any]:
    """Yield the image objects of a page, without tiny ones. Raises `NoRetry` if one is too large."""
    for image in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=FORMS_DEPTH_MAX):
        try:
            width, height = image.get_px_size()
        except pypdfium2.PdfiumError:
            continue
        check_size(width, height, f"page {number}")
        if min(width, height) >= SIDE_PIXELS_MIN:
            yield image


def _extract_image(image: Any) -> tuple[bytes, str] | None:
    """Return a picture and its suffix: a JPEG unchanged, others as PNG. Return `None` if it cannot be decoded."""
    try:
        if image.get_filters(skip_simple=True) == ["DCTDecode"]:
            data = bytes(image.get_data(decode_simple=True))
            with Image.open(io.BytesIO(data), formats=["JPEG"]) as jpeg:
                if jpeg.mode in JPEG_MODES:
                    return data, "jpg"
        png = io.BytesIO()
        image.get_bitmap(render=False).to_pil().save(png, "PNG")
    except (pypdfium2.PdfiumError, OSError, ValueError, KeyError, RuntimeError):
        return None
    return png.getvalue(), "png"


def _text_above(texts: Any, left: float, right: float, top: float, height: float) -> str:
    """Return the nearest line of text above a picture, limited to about its width."""
    for reach in (ABOVE_POINTS, height):
        text = texts.get_text_bounded(
            left=left - MARGIN_POINTS, bottom=top, right=right + MARGIN_POINTS, top=top + reach
        )
        if lines := [line.strip() for line in text.splitlines() if line.strip()]:
            return str(lines[-1])
    return ""
