"""Images for the tests: plain ones and hostile ones."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, Final

from PIL import Image, ImageCms

RED: Final = (255, 0, 0)
BLUE: Final = (0, 0, 255)
GPS: Final = 0x8825
MAKER: Final = 0x010F
ORIENTATION: Final = 0x0112


def picture(width: int = 64, height: int = 32, *, mode: str = "RGB") -> Image.Image:
    """Return an image that is red on the left and blue on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image.convert(mode)


def saved(image: Image.Image, kind: str, **more: Any) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return the image in the bytes of a file."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def photo(orientation: int = 1, *, width: int = 64, height: int = 32) -> bytes:
    """Return a JPEG like those of phones, with orientation, position and maker."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    exif[MAKER] = "the maker"
    exif.get_ifd(GPS)[2] = (47.0, 22.0, 40.0)
    return saved(
        picture(width, height), "JPEG", quality=95, exif=exif, comment=b"a comment", xmp=b"<x:xmpmeta>ada</x:xmpmeta>"
    )


def srgb_profile() -> bytes:
    """Return an sRGB color profile."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def moving(frames: int = 3, *, width: int = 32, height: int = 16, kind: str = "GIF") -> bytes:
    """Return an animation with frames of different colors, a tenth of a second each."""
    images = [Image.new("RGB", (width, height), (83 * number % 256, 0, 255)) for number in range(frames)]
    return saved(images[0], kind, save_all=True, append_images=images[1:], duration=100, loop=0)


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """Return a PNG of a few bytes that claims a huge size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(name, data) for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    )


def gif_bomb() -> bytes:
    """Return a GIF of a few bytes that claims a huge size."""
    side = struct.pack("<H", 65_535)
    return b"GIF89a" + side * 2 + b"\0\0\0," + b"\0\0\0\0" + side * 2 + b"\0\x02\x02\x44\x01\0;"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
