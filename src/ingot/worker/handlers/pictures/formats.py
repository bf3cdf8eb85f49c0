"""The formats of pictures that are read and written. No other decoder sees a file that somebody sent."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

# What Pillow imports when it meets a file is imported here: an isolated handler may not be able to later.
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

Format = Literal["png", "jpeg", "webp", "avif", "tiff", "gif"]


class OutputFormat(msgspec.Struct, frozen=True):
    """How a format is written: what Pillow and others call it, its pixels, and the quality unless told."""

    plugin: str
    suffix: str
    content_type: str
    modes: frozenset[str]
    quality: int | None = None
    compression: str | None = None
    has_profile: bool = True


_LOSSLESS_MODES: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
OUTPUT_FORMATS: Final[dict[Format, OutputFormat]] = {
    "png": OutputFormat("PNG", ".png", "image/png", _LOSSLESS_MODES),
    "jpeg": OutputFormat("JPEG", ".jpg", "image/jpeg", frozenset({"L", "RGB"}), quality=85),
    "webp": OutputFormat("WEBP", ".webp", "image/webp", frozenset({"RGB", "RGBA"}), quality=80),
    "avif": OutputFormat("AVIF", ".avif", "image/avif", frozenset({"RGB", "RGBA"}), quality=70),
    "tiff": OutputFormat("TIFF", ".tiff", "image/tiff", _LOSSLESS_MODES, compression="tiff_adobe_deflate"),
    "gif": OutputFormat("GIF", ".gif", "image/gif", frozenset({"1", "L", "P", "RGB", "RGBA"}), has_profile=False),
}
INPUT_FORMATS: Final[dict[str, Format]] = {  # By Pillow's name, with what is written when no format is asked for.
    PngImagePlugin.PngImageFile.format: "png",
    JpegImagePlugin.JpegImageFile.format: "jpeg",
    MpoImagePlugin.MpoImageFile.format: "jpeg",
    WebPImagePlugin.WebPImageFile.format: "webp",
    TiffImagePlugin.TiffImageFile.format: "tiff",
    GifImagePlugin.GifImageFile.format: "gif",
    BmpImagePlugin.BmpImageFile.format: "png",
    AvifImagePlugin.AvifImageFile.format: "avif",
}
if not features.check("avif"):  # Pillow can be built without it.
    del OUTPUT_FORMATS["avif"], INPUT_FORMATS[AvifImagePlugin.AvifImageFile.format]
PILLOW_FORMATS: Final = sorted(
    set(INPUT_FORMATS) - {MpoImagePlugin.MpoImageFile.format}
)  # A JPEG becomes an MPO once it is open.
