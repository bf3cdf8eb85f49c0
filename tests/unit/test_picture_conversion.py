"""Conversion of pictures: formats, sizes, metadata, colours, animations, and rejected files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image, ImageOps, PngImagePlugin

from ingot.worker import NoRetry
from ingot.worker.handlers.pictures import picture_conversion
from ingot.worker.handlers.pictures.formats import INPUT_FORMATS, OUTPUT_FORMATS, Format
from ingot.worker.handlers.pictures.options import ImageOptions
from ingot.worker.handlers.pictures.picture_conversion import ConvertedPicture, convert_picture
from tests.sample_images import (
    BLUE,
    GPS,
    MAKER,
    ORIENTATION,
    RED,
    bomb,
    gif_bomb,
    moving,
    opened,
    photo,
    picture,
    saved,
    srgb_profile,
)

FORMATS: list[Format] = ["png", "jpeg", "webp", "avif", "tiff", "gif"]


class Conversion(NamedTuple):
    """The report of a conversion, and its output."""

    report: ConvertedPicture
    image: Image.Image
    data: bytes


Convert = Callable[..., Conversion]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """A function that converts the picture in these bytes with these options."""

    def run(data: bytes, **options: Any) -> Conversion:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(data)
        report = convert_picture(source, target, ImageOptions(**options))
        return Conversion(report, opened(target.read_bytes()), target.read_bytes())

    return run


def near(actual: Any, expected: tuple[int, ...], tolerance: int = 12) -> bool:
    """Whether a pixel has about this colour, because most formats are lossy."""
    return all(abs(one - other) <= tolerance for one, other in zip(actual, expected, strict=True))


def test_the_installed_pillow_supports_all_formats() -> None:
    assert set(OUTPUT_FORMATS) == set(FORMATS) == set(INPUT_FORMATS.values())


@pytest.mark.parametrize("source", ["PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF", "BMP"])
@pytest.mark.parametrize("target", FORMATS)
def test_every_format_is_converted_to_every_other(convert: Convert, source: str, target: Format) -> None:
    result = convert(saved(picture(), source), format=target, width=32)
    assert (result.report.format, result.report.source_format, result.report.frames) == (target, source.lower(), 1)
    assert (result.report.size, result.report.source_size) == (result.image.size, (64, 32)) == ((32, 16), (64, 32))
    assert result.image.format == OUTPUT_FORMATS[target].plugin
    shown = result.image.convert("RGB")
    assert near(shown.getpixel((4, 8)), RED, 40)
    assert near(shown.getpixel((27, 8)), BLUE, 40)


@pytest.mark.parametrize("source", ["PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF"])
def test_a_picture_keeps_its_size_and_format_by_default(convert: Convert, source: str) -> None:
    result = convert(saved(picture(), source))
    assert (result.report.format, result.image.format, result.image.size) == (source.lower(), source, (64, 32))


def test_a_bitmap_becomes_a_png(convert: Convert) -> None:
    assert convert(saved(picture(), "BMP")).report.format == "png"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_a_picture_that_is_not_resized_keeps_its_pixels(convert: Convert, mode: str) -> None:
    before = picture(mode=mode)
    result = convert(saved(before, "PNG"))
    assert result.image.mode == mode
    assert result.image.convert("RGBA").tobytes() == before.convert("RGBA").tobytes()


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("size", [{}, {"width": 16}])
def test_a_photo_is_rotated_upright_and_stripped_of_metadata(
    convert: Convert, target: Format, size: dict[str, int]
) -> None:
    result = convert(photo(orientation=6), format=target, **size)
    assert result.report.source_size == (32, 64)
    assert result.image.size == result.report.size == ((16, 32) if size else (32, 64))
    shown, middle = result.image.convert("RGB"), result.image.width // 2
    assert near(shown.getpixel((middle, 2)), RED, 40), "the left side is now at the top"
    assert near(shown.getpixel((middle, result.image.height - 3)), BLUE, 40)
    assert not dict(result.image.getexif().get_ifd(GPS))
    assert {ORIENTATION, MAKER} & set(result.image.getexif()) <= set()
    for metadata in (b"the maker", b"a comment", b"xmpmeta", b"Exif\0"):
        assert metadata not in result.data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_corrected(convert: Convert, orientation: int) -> None:
    before = picture(32, 16)
    before.putpixel((0, 0), (0, 255, 0))  # Every orientation looks different.
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = saved(before, "PNG", exif=exif)
    upright = ImageOps.exif_transpose(opened(data))
    assert upright is not None
    assert convert(data).image.tobytes() == upright.tobytes()


def test_a_rotated_tiff_is_corrected_once(convert: Convert) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    result = convert(saved(picture(), "TIFF", exif=exif), format="png", width=16)
    assert (result.report.source_size, result.image.size) == ((32, 64), (16, 32))
    assert near(result.image.getpixel((8, 2)), RED, 40)


def test_tags_of_a_tiff_are_stripped(convert: Convert) -> None:
    exif = Image.Exif()
    exif[MAKER] = "the maker"
    exif[700] = b"<x:xmpmeta>ada</x:xmpmeta>"
    result = convert(saved(picture(), "TIFF", exif=exif))
    assert b"the maker" not in result.data
    assert b"xmpmeta" not in result.data


def test_comments_of_a_gif_and_a_png_are_stripped(convert: Convert) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", "ada")
    assert b"ada" not in convert(saved(picture(), "PNG", pnginfo=text)).data
    assert b"a comment" not in convert(saved(picture(), "GIF", comment=b"a comment")).data


@pytest.mark.parametrize("target", ["jpeg", "png", "webp", "avif", "tiff"])
def test_a_picture_without_stripping_keeps_its_exif_and_is_upright(convert: Convert, target: Format) -> None:
    exif = convert(photo(orientation=6), format=target, strip=False).image.getexif()
    assert (exif[MAKER], exif.get(ORIENTATION, 1)) == ("the maker", 1)
    assert exif.get_ifd(GPS)[2] == (47.0, 22.0, 40.0)


@pytest.mark.parametrize("target", ["jpeg", "png", "tiff"])
def test_a_tiff_without_stripping_has_the_new_size(convert: Convert, target: Format) -> None:
    exif = Image.Exif()
    exif[MAKER], exif[ORIENTATION] = "the maker", 6
    result = convert(saved(picture(), "TIFF", exif=exif), format=target, strip=False, width=16)
    assert (result.image.size, result.image.getexif()[MAKER]) == ((16, 32), "the maker")
    assert near(result.image.convert("RGB").getpixel((8, 2)), RED, 40)


@pytest.mark.parametrize("target", ["jpeg", "png", "webp", "avif", "tiff"])
def test_the_colour_profile_is_kept(convert: Convert, target: Format) -> None:
    profile = srgb_profile()
    assert convert(saved(picture(), "JPEG", icc_profile=profile), format=target).image.info["icc_profile"] == profile


def test_a_gif_is_converted_to_srgb(convert: Convert) -> None:
    result = convert(saved(picture(), "PNG", icc_profile=srgb_profile()), format="gif")
    assert near(result.image.convert("RGB").getpixel((4, 4)), RED)


@pytest.mark.parametrize("profile", [None, b"no profile at all", srgb_profile()])
def test_cmyk_is_converted_to_rgb(convert: Convert, profile: bytes | None) -> None:
    data = saved(picture(mode="CMYK"), "JPEG", quality=95, icc_profile=profile)
    result = convert(data)
    assert (result.image.mode, "icc_profile" in result.image.info) == ("RGB", False)
    assert near(result.image.getpixel((4, 4)), RED, 40)


@pytest.mark.parametrize(
    ("target", "mode", "value"), [("png", "I;16", 40_000), ("jpeg", "L", 156), ("webp", "RGB", 156)]
)
@pytest.mark.parametrize("size", [{}, {"width": 8}])
def test_sixteen_bits_are_kept_or_reduced_to_eight(
    convert: Convert, target: Format, mode: str, value: int, size: dict[str, int]
) -> None:
    result = convert(saved(Image.new("I;16", (16, 16), 40_000), "PNG"), format=target, **size)
    pixel = result.image.getpixel((2, 2))
    assert result.image.mode == mode
    assert near(pixel if isinstance(pixel, tuple) else (pixel,), (value,) * len(result.image.getbands()), 2)


def test_a_picture_with_floating_point_values_is_rejected(convert: Convert) -> None:
    with pytest.raises(NoRetry, match="32 bits"):
        convert(saved(Image.new("F", (8, 8), 0.5), "TIFF"), format="png")


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA"])
@pytest.mark.parametrize("size", [{}, {"width": 8}])
def test_transparency_becomes_the_background_in_formats_without_it(
    convert: Convert, mode: str, size: dict[str, int]
) -> None:
    clear = Image.new("RGBA", (16, 16), (0, 0, 0, 0)).convert(mode)
    more = {"transparency": 0} if mode == "P" else {}
    if mode == "P":
        clear = Image.new("P", (16, 16), 0)
        clear.putpalette([10, 20, 30])
    data = saved(clear, "PNG", **more)
    result = convert(data, format="jpeg", background="#00ff00", **size)
    assert near(result.image.getpixel((3, 3)), (0, 255, 0))
    for target in ("png", "webp", "gif"):
        transparent = convert(data, format=target, **size).image.convert("RGBA")
        assert transparent.getpixel((3, 3))[3] == 0  # type: ignore[index]


def test_a_transparent_colour_stays_transparent(convert: Convert) -> None:
    result = convert(saved(picture(), "PNG", transparency=RED), width=32)
    assert [result.image.convert("RGBA").getpixel((x, 8))[3] for x in (2, 28)] == [0, 255]  # type: ignore[index]


@pytest.mark.parametrize(("source", "target"), [("GIF", "gif"), ("GIF", "webp"), ("WEBP", "gif"), ("PNG", "png")])
def test_an_animation_keeps_its_frames(convert: Convert, source: str, target: Format) -> None:
    result = convert(moving(3, kind=source), format=target, width=16)
    assert (result.report.frames, result.image.n_frames) == (3, 3)  # type: ignore[attr-defined]
    assert (result.image.size, result.image.info["loop"]) == ((16, 8), 0)
    durations = []
    for number in range(3):
        result.image.seek(number)
        result.image.load()
        durations.append(result.image.info["duration"])
    assert durations == [100, 100, 100]


@pytest.mark.parametrize("target", ["png", "jpeg", "tiff"])
def test_formats_without_animation_get_the_first_frame(convert: Convert, target: Format) -> None:
    result = convert(moving(3), format=target)
    assert (result.report.frames, getattr(result.image, "n_frames", 1)) == (1, 1)
    assert near(result.image.convert("RGB").getpixel((4, 4)), (0, 0, 255))


def test_a_single_pixel_is_a_picture(convert: Convert) -> None:
    assert convert(saved(picture(1, 1), "PNG"), width=512, format="jpeg").image.size == (1, 1)
    assert convert(saved(picture(1, 1), "PNG"), width=512, enlarge=True).image.size == (512, 512)


def test_a_lower_quality_is_smaller(convert: Convert) -> None:
    noise = Image.effect_noise((128, 128), 80).convert("RGB")
    for target in ("jpeg", "webp", "avif"):
        low, high = (convert(saved(noise, "PNG"), format=target, quality=quality).data for quality in (10, 95))
        assert len(low) < len(high) / 2


REJECTED = {
    "empty": (b"", "empty"),
    "text": (b"no picture at all", "not an image"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>', "not an image"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
    "ico": (saved(picture(16, 16), "ICO"), "not an image"),
    "ppm": (saved(picture(), "PPM"), "not an image"),
    "bomb": (bomb(), "more than 100000000 pixels"),
    "gif bomb": (gif_bomb(), "more than 100000000 pixels"),
    "just too large": (bomb(10_001, 10_000), "more than 100000000 pixels"),
    "truncated jpeg": (photo()[:-200], "damaged: .*[Tt]runcated"),
    "truncated png": (saved(Image.effect_noise((64, 64), 80), "PNG")[:-500], "damaged"),
    "half a png": (bomb(10, 10), "damaged"),
}


@pytest.mark.parametrize("case", REJECTED)
@pytest.mark.parametrize("size", [{}, {"width": 16}])
def test_an_unreadable_picture_is_rejected_with_its_reason(convert: Convert, case: str, size: dict[str, int]) -> None:
    data, message = REJECTED[case]
    with pytest.raises(NoRetry, match=message):
        convert(data, **size)


def test_an_animation_with_too_many_frames_is_rejected(convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_conversion, "FRAMES_MAX", 4)
    convert(moving(4))
    with pytest.raises(NoRetry, match="5 frames"):
        convert(moving(5))
    assert convert(moving(5), format="png").report.frames == 1


def test_the_pixels_of_all_frames_are_limited(convert: Convert) -> None:
    frames = [Image.new("P", (5_000, 5_000), color) for color in range(5)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(NoRetry, match="5 frames of 5000 × 5000 pixels"):
        convert(data)


def test_an_output_that_would_be_too_large_is_rejected(convert: Convert) -> None:
    with pytest.raises(NoRetry, match="would have 20000 × 10000 pixels"):
        convert(saved(picture(), "PNG"), width=20_000, enlarge=True)


def test_a_size_that_the_format_cannot_hold_is_rejected(convert: Convert) -> None:
    with pytest.raises(NoRetry, match="cannot be written as WEBP"):
        convert(saved(Image.new("L", (20_000, 1)), "PNG"), format="webp")
