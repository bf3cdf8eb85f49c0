"""The options of the handler `image`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from PIL import ImageColor

from ingot.worker.handlers.pictures.fitting import Fit
from ingot.worker.handlers.pictures.formats import OUTPUT_FORMATS, Format

SIDE_PIXELS_MAX: Final = 65_500  # The limit of JPEG.
Side = Annotated[int, msgspec.Meta(ge=1, le=SIDE_PIXELS_MAX)]


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of an `image` job. The default size and format are those of the source."""

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
            raise ValueError(f"fit {self.fit} needs both width and height")
        if self.format is not None and self.format not in OUTPUT_FORMATS:
            raise ValueError(f"format {self.format} is not supported by the Pillow version of this worker")
        try:
            ImageColor.getrgb(self.background)
        except ValueError:
            raise ValueError("background is not a colour; use a value such as #ffffff or a colour name") from None

    @property
    def has_size(self) -> bool:
        """Whether a width or a height is requested."""
        return self.width is not None or self.height is not None
