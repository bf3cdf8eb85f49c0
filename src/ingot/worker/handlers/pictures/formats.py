"""The image formats that can be read and written. Untrusted files reach no other decoder of Pillow."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

# Pillow imports its plugins on demand. Import them here, because an isolated handler may be unable to do so later.
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
    """How a format is written. `plugin` is Pillow's name for it, `modes` are the pixel modes that it supports.

    `quality` is the default for lossy formats.
    """

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
# Pillow's name of each input format, and the default output format for it.
INPUT_FORMATS: Final[dict[str, Format]] = {
    PngImagePlugin.PngImageFile.format: "png",
    JpegImagePlugin.JpegImageFile.format: "jpeg",
    MpoImagePlugin.MpoImageFile.format: "jpeg",
    WebPImagePlugin.WebPImageFile.format: "webp",
    TiffImagePlugin.TiffImageFile.format: "tiff",
    GifImagePlugin.GifImageFile.format: "gif",
    BmpImagePlugin.BmpImageFile.format: "png",
    AvifImagePlugin.AvifImageFile.format: "avif",
}
if not features.check("avif"):  # Pillow can be built without AVIF.
    del OUTPUT_FORMATS["avif"], INPUT_FORMATS[AvifImagePlugin.AvifImageFile.format]
# MPO is left out, because Pillow opens an MPO file as JPEG and changes the format afterwards.
PILLOW_FORMATS: Final = sorted(set(INPUT_FORMATS) - {MpoImagePlugin.MpoImageFile.format})
