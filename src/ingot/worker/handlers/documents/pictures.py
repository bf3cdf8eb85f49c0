"""Pictures: those in a page taken out, the page drawn as one, and none decoded that is too large."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pypdfium2
from PIL import Image
from pypdfium2 import raw

from ingot.worker.job import NoRetry

PICTURE_PIXELS_MAX: Final = 100_000_000  # Of one that is decoded: 400 MB with four bytes each.
RENDERED_PIXELS_MAX: Final = 25_000_000  # Of a page that is drawn: A3 at 400 dpi, nearly.
SIDE_PIXELS_MIN: Final = 8  # Less is a line or a dot, not a picture.
PAGE_PICTURES_MAX: Final = 200
FORMS_DEPTH_MAX: Final = 3
POINTS_PER_INCH: Final = 72
FULL_PAGE_SHARE: Final = 0.8  # A picture that covers so much of a page is the page.
ABOVE_POINTS: Final = 40
MARGIN_POINTS: Final = 20
JPEG_MODES: Final = frozenset({"1", "L", "LA", "RGB", "RGBA", "P", "I;16"})


class ExtractedPicture(msgspec.Struct, frozen=True, kw_only=True):
    """One that was in a page: its bytes, what they are, and the text above it, if there is any."""

    data: bytes
    suffix: str
    above: str


def check_size(width: int, height: int, where: str) -> None:
    """Raises `NoRetry` for a picture that is too large to be decoded."""
    if width * height > PICTURE_PIXELS_MAX:
        raise NoRetry(
            f"{where} has a picture of {width} × {height} pixels; the most is {PICTURE_PIXELS_MAX // 1_000_000} million"
        )


def render_page(page: pypdfium2.PdfPage, number: int, *, dpi: int) -> Image.Image:
    """A page as a picture, as fine as asked for or as may be. Raises `NoRetry` when that would take too much memory."""
    for _ in _image_objects(page, number):
        pass
    width, height = page.get_size()
    scale = dpi / POINTS_PER_INCH
    if (pixels := width * height * scale**2) > RENDERED_PIXELS_MAX:
        scale *= (RENDERED_PIXELS_MAX / pixels) ** 0.5
    picture: Image.Image = page.render(scale=scale, grayscale=True).to_pil()
    return picture


def extract_pictures(page: pypdfium2.PdfPage, number: int, *, skip_full_page: bool) -> Iterator[ExtractedPicture]:
    """The pictures in a page, without one that is the page itself when told so. Raises `NoRetry` for one too large."""
    width, height = page.get_size()
    texts: Any = None
    for count, image in enumerate(_image_objects(page, number)):
        if count >= PAGE_PICTURES_MAX:
            return
        left, bottom, right, top = image.get_bounds()
        if skip_full_page and (right - left) * (top - bottom) > FULL_PAGE_SHARE * width * height:
            continue
        if (found := _extract_image(image)) is not None:
            texts = texts or page.get_textpage()
            yield ExtractedPicture(data=found[0], suffix=found[1], above=_text_above(texts, left, right, top, height))


def _image_objects(page: pypdfium2.PdfPage, number: int) -> Iterator[Any]:
    """The objects of a page that are pictures of some size, none of them too large."""
    for image in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=FORMS_DEPTH_MAX):
        try:
            width, height = image.get_px_size()
        except pypdfium2.PdfiumError:
            continue
        check_size(width, height, f"page {number}")
        if min(width, height) >= SIDE_PIXELS_MIN:
            yield image


def _extract_image(image: Any) -> tuple[bytes, str] | None:
    """A picture and its suffix: a JPEG as it is, and all else as PNG; `None` for one that cannot be decoded."""
    try:
        if image.get_filters(skip_simple=True) == ["DCTDecode"]:
            data = bytes(image.get_data(decode_simple=True))
            with Image.open(io.BytesIO(data), formats=["JPEG"]) as jpeg:
                if jpeg.mode in JPEG_MODES:
                    return data, "jpg"
        made = io.BytesIO()
        image.get_bitmap(render=False).to_pil().save(made, "PNG")
    except (pypdfium2.PdfiumError, OSError, ValueError, KeyError, RuntimeError):
        return None
    return made.getvalue(), "png"


def _text_above(texts: Any, left: float, right: float, top: float, height: float) -> str:
    """The last line of text that ends above a picture, as far as it is as wide."""
    for reach in (ABOVE_POINTS, height):
        found = texts.get_text_bounded(
            left=left - MARGIN_POINTS, bottom=top, right=right + MARGIN_POINTS, top=top + reach
        )
        if lines := [line.strip() for line in found.splitlines() if line.strip()]:
            return str(lines[-1])
    return ""
