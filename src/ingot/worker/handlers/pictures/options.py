"""What is to become of a picture."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from PIL import ImageColor

from ingot.worker.handlers.pictures.fitting import Fit
from ingot.worker.handlers.pictures.formats import OUTPUT_FORMATS, Format

SIDE_PIXELS_MAX: Final = 65_500  # That of a JPEG.
Side = Annotated[int, msgspec.Meta(ge=1, le=SIDE_PIXELS_MAX)]


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to become of a picture. Without a size it keeps its own, and so it does with its format."""

    width: Side | None = None
    height: Side | None = None
    fit: Fit = "inside"
    enlarge: bool = False
    format: Format | None = None
    quality: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    strip: bool = True
    background: str = "white"

    def __post_init__(self) -> None:
        if self.fit != "inside" and (self.width is None or self.height is None):
            raise ValueError(f"fit is {self.fit}, which needs a width and a height")
        if self.format is not None and self.format not in OUTPUT_FORMATS:
            raise ValueError(f"format is {self.format}, which the Pillow of this worker cannot write")
        try:
            ImageColor.getrgb(self.background)
        except ValueError:
            raise ValueError("background is no colour; write one as in #ffffff, or by its name") from None

    @property
    def has_size(self) -> bool:
        """Whether a size is asked for."""
        return self.width is not None or self.height is not None
