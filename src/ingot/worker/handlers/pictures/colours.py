"""The colours of a picture, as the format that it is written in has them."""

from __future__ import annotations

import io
from typing import Final

from PIL import Image, ImageCms, ImageColor

from ingot.worker.handlers.pictures.formats import OutputFormat
from ingot.worker.job import NoRetry

SRGB: Final = ImageCms.createProfile("sRGB")
TRANSPARENT_MODES: Final = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
GREY_MODES: Final = frozenset({"1", "L", "LA", "La"})
SIXTEEN_BIT_MODES: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
UNSUPPORTED_MODES: Final = frozenset({"I", "F"})  # Numbers of which nobody says what is white.
PROFILE_MODES: Final = {"RGB ": frozenset({"RGB", "RGBA", "P"}), "GRAY": frozenset({"L", "LA", "1", "I;16"})}


def convert_for_resizing(image: Image.Image) -> Image.Image:
    """The same picture with pixels that can be mixed: one without a palette. Raises `NoRetry`."""
    if image.mode in UNSUPPORTED_MODES:
        raise NoRetry(f"the picture has numbers of 32 bits ({image.mode}) in place of colours, which are not read here")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode in SIXTEEN_BIT_MODES:
        return image if image.mode == "I;16" else image.convert("I").convert("I;16")
    if image.has_transparency_data and image.mode not in TRANSPARENT_MODES:  # One colour that stands for nothing.
        return image.convert("LA" if image.mode in GREY_MODES else "RGBA")
    return image.convert("L") if image.mode == "1" else image


def convert_colours(
    image: Image.Image, profile: bytes | None, writing: OutputFormat, background: str
) -> tuple[Image.Image, bytes | None]:
    """A picture that the format takes, and the colour profile that goes with it, if one does."""
    image, profile = _to_rgb(image, profile, has_profile=writing.has_profile)
    if image.mode in SIXTEEN_BIT_MODES and image.mode not in writing.modes:
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if image.has_transparency_data and not writing.modes & {"RGBA", "P"}:
        image = _flatten(image, background)
    if image.mode not in writing.modes:
        image = image.convert(_output_mode(image, writing))
    return image, profile if profile is not None and image.mode in PROFILE_MODES.get(
        _profile_colour_space(profile), ()
    ) else None


def _to_rgb(image: Image.Image, profile: bytes | None, *, has_profile: bool) -> tuple[Image.Image, bytes | None]:
    """A picture in red, green and blue, or grey: what ink would be needed is told by its profile."""
    foreign = image.mode in ("CMYK", "YCbCr", "LAB", "HSV")
    if not foreign and (profile is None or has_profile or image.mode not in ("RGB", "RGBA")):
        return image, profile
    if profile is not None:
        try:
            mode = "RGBA" if image.mode == "RGBA" else "RGB"
            shown = ImageCms.profileToProfile(image, io.BytesIO(profile), SRGB, outputMode=mode)
        except (ImageCms.PyCMSError, OSError, ValueError):  # A profile that is damaged, or of something else.
            shown = None
        if shown is not None:
            return shown, None
    return (image.convert("RGB") if foreign else image), None


def _flatten(image: Image.Image, background: str) -> Image.Image:
    """The picture on a ground of one colour."""
    seen = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
    colour = ImageColor.getrgb(background)[:3]
    ground = Image.new("RGB", seen.size, colour)
    ground.paste(seen.convert("RGB") if seen.mode == "LA" else seen, mask=seen.getchannel("A"))
    return ground


def _output_mode(image: Image.Image, writing: OutputFormat) -> str:
    if image.has_transparency_data:
        return "RGBA"
    return "L" if image.mode in GREY_MODES and "L" in writing.modes else "RGB"


def _profile_colour_space(profile: bytes) -> str:
    return profile[16:20].decode("ascii", "replace")
