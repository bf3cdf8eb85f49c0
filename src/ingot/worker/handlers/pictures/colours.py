"""Conversion of image colours to what the output format supports."""

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
UNSUPPORTED_MODES: Final = frozenset({"I", "F"})  # 32-bit values without a defined white.
PROFILE_MODES: Final = {"RGB ": frozenset({"RGB", "RGBA", "P"}), "GRAY": frozenset({"L", "LA", "1", "I;16"})}


def convert_for_resizing(image: Image.Image) -> Image.Image:
    """Convert an image to a mode whose pixels can be interpolated: one without a palette. Raises `NoRetry`."""
    if image.mode in UNSUPPORTED_MODES:
        raise NoRetry(f"images with 32 bits per channel (mode {image.mode}) are not supported")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode in SIXTEEN_BIT_MODES:
        return image if image.mode == "I;16" else image.convert("I").convert("I;16")
    if image.has_transparency_data and image.mode not in TRANSPARENT_MODES:  # One colour is marked as transparent.
        return image.convert("LA" if image.mode in GREY_MODES else "RGBA")
    return image.convert("L") if image.mode == "1" else image


def convert_colours(
    image: Image.Image, profile: bytes | None, output_format: OutputFormat, background: str
) -> tuple[Image.Image, bytes | None]:
    """Convert an image to a mode that the format supports. Return it and its colour profile, if it keeps one."""
    image, profile = _to_rgb(image, profile, has_profile=output_format.has_profile)
    if image.mode in SIXTEEN_BIT_MODES and image.mode not in output_format.modes:
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if image.has_transparency_data and not output_format.modes & {"RGBA", "P"}:
        image = _flatten(image, background)
    if image.mode not in output_format.modes:
        image = image.convert(_output_mode(image, output_format))
    return image, profile if profile is not None and image.mode in PROFILE_MODES.get(
        _profile_colour_space(profile), ()
    ) else None


def _to_rgb(image: Image.Image, profile: bytes | None, *, has_profile: bool) -> tuple[Image.Image, bytes | None]:
    """Convert an image to RGB or greyscale, with its colour profile if it has a valid one."""
    needs_rgb = image.mode in ("CMYK", "YCbCr", "LAB", "HSV")
    if not needs_rgb and (profile is None or has_profile or image.mode not in ("RGB", "RGBA")):
        return image, profile
    if profile is not None:
        try:
            mode = "RGBA" if image.mode == "RGBA" else "RGB"
            converted = ImageCms.profileToProfile(image, io.BytesIO(profile), SRGB, outputMode=mode)
        except (ImageCms.PyCMSError, OSError, ValueError):  # The profile is damaged or belongs to another mode.
            converted = None
        if converted is not None:
            return converted, None
    return (image.convert("RGB") if needs_rgb else image), None


def _flatten(image: Image.Image, background: str) -> Image.Image:
    """Replace transparency with a background colour."""
    image_with_alpha = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
    colour = ImageColor.getrgb(background)[:3]
    canvas = Image.new("RGB", image_with_alpha.size, colour)
    canvas.paste(
        image_with_alpha.convert("RGB") if image_with_alpha.mode == "LA" else image_with_alpha,
        mask=image_with_alpha.getchannel("A"),
    )
    return canvas


def _output_mode(image: Image.Image, output_format: OutputFormat) -> str:
    if image.has_transparency_data:
        return "RGBA"
    return "L" if image.mode in GREY_MODES and "L" in output_format.modes else "RGB"


def _profile_colour_space(profile: bytes) -> str:
    return profile[16:20].decode("ascii", "replace")
