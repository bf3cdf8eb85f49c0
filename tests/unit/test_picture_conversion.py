"""Pictures made of pictures: what comes out, what is left behind, and what is refused."""

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


class Seen(NamedTuple):
    """What was made, as it is told and as it is read back."""

    told: ConvertedPicture
    image: Image.Image
    data: bytes


Make = Callable[..., Seen]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Draw the picture in these bytes with these options."""

    def run(data: bytes, **options: Any) -> Seen:
        source, made = tmp_path / "source", tmp_path / "made"
        source.write_bytes(data)
        told = convert_picture(source, made, ImageOptions(**options))
        return Seen(told, opened(made.read_bytes()), made.read_bytes())

    return run


def near(found: Any, wanted: tuple[int, ...], by: int = 12) -> bool:
    """Whether a pixel has about this colour: most formats keep about what they are given."""
    return all(abs(one - other) <= by for one, other in zip(found, wanted, strict=True))


def test_this_pillow_reads_and_writes_all_that_we_name() -> None:
    assert set(OUTPUT_FORMATS) == set(FORMATS) == set(INPUT_FORMATS.values())


@pytest.mark.parametrize("source", ["PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF", "BMP"])
@pytest.mark.parametrize("wanted", FORMATS)
def test_every_format_becomes_every_other(make: Make, source: str, wanted: Format) -> None:
    seen = make(saved(picture(), source), format=wanted, width=32)
    assert (seen.told.format, seen.told.source_format, seen.told.frames) == (wanted, source.lower(), 1)
    assert (seen.told.size, seen.told.source_size) == (seen.image.size, (64, 32)) == ((32, 16), (64, 32))
    assert seen.image.format == OUTPUT_FORMATS[wanted].plugin
    shown = seen.image.convert("RGB")
    assert near(shown.getpixel((4, 8)), RED, 40)
    assert near(shown.getpixel((27, 8)), BLUE, 40)


@pytest.mark.parametrize("source", ["PNG", "JPEG", "WEBP", "AVIF", "TIFF", "GIF"])
def test_a_picture_keeps_its_size_and_format_unless_told(make: Make, source: str) -> None:
    seen = make(saved(picture(), source))
    assert (seen.told.format, seen.image.format, seen.image.size) == (source.lower(), source, (64, 32))


def test_a_bitmap_becomes_a_png(make: Make) -> None:
    assert make(saved(picture(), "BMP")).told.format == "png"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_what_is_not_resized_keeps_its_pixels(make: Make, mode: str) -> None:
    before = picture(mode=mode)
    seen = make(saved(before, "PNG"))
    assert seen.image.mode == mode
    assert seen.image.convert("RGBA").tobytes() == before.convert("RGBA").tobytes()


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("size", [{}, {"width": 16}])
def test_a_photo_is_turned_upright_and_says_nothing_any_more(make: Make, wanted: Format, size: dict[str, int]) -> None:
    seen = make(photo(orientation=6), format=wanted, **size)
    assert seen.told.source_size == (32, 64)
    assert seen.image.size == seen.told.size == ((16, 32) if size else (32, 64))
    shown, middle = seen.image.convert("RGB"), seen.image.width // 2
    assert near(shown.getpixel((middle, 2)), RED, 40), "what was left is up"
    assert near(shown.getpixel((middle, seen.image.height - 3)), BLUE, 40)
    assert not dict(seen.image.getexif().get_ifd(GPS))
    assert {ORIENTATION, MAKER} & set(seen.image.getexif()) <= set()
    for word in (b"the maker", b"a comment", b"xmpmeta", b"Exif\0"):
        assert word not in seen.data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_way_to_hold_a_camera_is_undone(make: Make, orientation: int) -> None:
    before = picture(32, 16)
    before.putpixel((0, 0), (0, 255, 0))  # No two ways to turn it look the same.
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = saved(before, "PNG", exif=exif)
    upright = ImageOps.exif_transpose(opened(data))
    assert upright is not None
    assert make(data).image.tobytes() == upright.tobytes()


def test_a_tiff_that_lies_on_its_side_is_turned_once(make: Make) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    seen = make(saved(picture(), "TIFF", exif=exif), format="png", width=16)
    assert (seen.told.source_size, seen.image.size) == ((32, 64), (16, 32))
    assert near(seen.image.getpixel((8, 2)), RED, 40)


def test_a_tiff_leaves_its_tags_behind(make: Make) -> None:
    exif = Image.Exif()
    exif[MAKER] = "the maker"
    exif[700] = b"<x:xmpmeta>ada</x:xmpmeta>"
    seen = make(saved(picture(), "TIFF", exif=exif))
    assert b"the maker" not in seen.data
    assert b"xmpmeta" not in seen.data


def test_a_gif_and_a_png_leave_their_comments_behind(make: Make) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", "ada")
    assert b"ada" not in make(saved(picture(), "PNG", pnginfo=text)).data
    assert b"a comment" not in make(saved(picture(), "GIF", comment=b"a comment")).data


@pytest.mark.parametrize("wanted", ["jpeg", "png", "webp", "avif", "tiff"])
def test_what_is_not_to_be_stripped_keeps_its_exif_and_is_upright(make: Make, wanted: Format) -> None:
    exif = make(photo(orientation=6), format=wanted, strip=False).image.getexif()
    assert (exif[MAKER], exif.get(ORIENTATION, 1)) == ("the maker", 1)
    assert exif.get_ifd(GPS)[2] == (47.0, 22.0, 40.0)


@pytest.mark.parametrize("wanted", ["jpeg", "png", "tiff"])
def test_a_tiff_that_is_not_to_be_stripped_is_the_new_size(make: Make, wanted: Format) -> None:
    exif = Image.Exif()
    exif[MAKER], exif[ORIENTATION] = "the maker", 6
    seen = make(saved(picture(), "TIFF", exif=exif), format=wanted, strip=False, width=16)
    assert (seen.image.size, seen.image.getexif()[MAKER]) == ((16, 32), "the maker")
    assert near(seen.image.convert("RGB").getpixel((8, 2)), RED, 40)


@pytest.mark.parametrize("wanted", ["jpeg", "png", "webp", "avif", "tiff"])
def test_the_colour_profile_is_kept(make: Make, wanted: Format) -> None:
    profile = srgb_profile()
    assert make(saved(picture(), "JPEG", icc_profile=profile), format=wanted).image.info["icc_profile"] == profile


def test_a_gif_has_its_colours_without_a_profile(make: Make) -> None:
    seen = make(saved(picture(), "PNG", icc_profile=srgb_profile()), format="gif")
    assert near(seen.image.convert("RGB").getpixel((4, 4)), RED)


@pytest.mark.parametrize("profile", [None, b"no profile at all", srgb_profile()])
def test_ink_becomes_light(make: Make, profile: bytes | None) -> None:
    data = saved(picture(mode="CMYK"), "JPEG", quality=95, icc_profile=profile)
    seen = make(data)
    assert (seen.image.mode, "icc_profile" in seen.image.info) == ("RGB", False)
    assert near(seen.image.getpixel((4, 4)), RED, 40)


@pytest.mark.parametrize(
    ("wanted", "mode", "value"), [("png", "I;16", 40_000), ("jpeg", "L", 156), ("webp", "RGB", 156)]
)
@pytest.mark.parametrize("size", [{}, {"width": 8}])
def test_sixteen_bits_stay_or_become_eight(
    make: Make, wanted: Format, mode: str, value: int, size: dict[str, int]
) -> None:
    seen = make(saved(Image.new("I;16", (16, 16), 40_000), "PNG"), format=wanted, **size)
    found = seen.image.getpixel((2, 2))
    assert seen.image.mode == mode
    assert near(found if isinstance(found, tuple) else (found,), (value,) * len(seen.image.getbands()), 2)


def test_numbers_that_are_no_colours_are_refused(make: Make) -> None:
    with pytest.raises(NoRetry, match="32 bits"):
        make(saved(Image.new("F", (8, 8), 0.5), "TIFF"), format="png")


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA"])
@pytest.mark.parametrize("size", [{}, {"width": 8}])
def test_what_is_transparent_gets_a_ground_where_there_is_none(make: Make, mode: str, size: dict[str, int]) -> None:
    clear = Image.new("RGBA", (16, 16), (0, 0, 0, 0)).convert(mode)
    more = {"transparency": 0} if mode == "P" else {}
    if mode == "P":
        clear = Image.new("P", (16, 16), 0)
        clear.putpalette([10, 20, 30])
    data = saved(clear, "PNG", **more)
    seen = make(data, format="jpeg", background="#00ff00", **size)
    assert near(seen.image.getpixel((3, 3)), (0, 255, 0))
    for wanted in ("png", "webp", "gif"):
        kept = make(data, format=wanted, **size).image.convert("RGBA")
        assert kept.getpixel((3, 3))[3] == 0  # type: ignore[index]


def test_one_colour_that_stands_for_nothing_is_transparent(make: Make) -> None:
    seen = make(saved(picture(), "PNG", transparency=RED), width=32)
    assert [seen.image.convert("RGBA").getpixel((x, 8))[3] for x in (2, 28)] == [0, 255]  # type: ignore[index]


@pytest.mark.parametrize(("source", "wanted"), [("GIF", "gif"), ("GIF", "webp"), ("WEBP", "gif"), ("PNG", "png")])
def test_a_picture_that_moves_keeps_its_frames(make: Make, source: str, wanted: Format) -> None:
    seen = make(moving(3, kind=source), format=wanted, width=16)
    assert (seen.told.frames, seen.image.n_frames) == (3, 3)  # type: ignore[attr-defined]
    assert (seen.image.size, seen.image.info["loop"]) == ((16, 8), 0)
    durations = []
    for number in range(3):
        seen.image.seek(number)
        seen.image.load()
        durations.append(seen.image.info["duration"])
    assert durations == [100, 100, 100]


@pytest.mark.parametrize("wanted", ["png", "jpeg", "tiff"])
def test_of_a_picture_that_moves_the_first_frame_is_taken_elsewhere(make: Make, wanted: Format) -> None:
    seen = make(moving(3), format=wanted)
    assert (seen.told.frames, getattr(seen.image, "n_frames", 1)) == (1, 1)
    assert near(seen.image.convert("RGB").getpixel((4, 4)), (0, 0, 255))


def test_a_single_pixel_is_a_picture(make: Make) -> None:
    assert make(saved(picture(1, 1), "PNG"), width=512, format="jpeg").image.size == (1, 1)
    assert make(saved(picture(1, 1), "PNG"), width=512, enlarge=True).image.size == (512, 512)


def test_a_lower_quality_is_smaller(make: Make) -> None:
    noise = Image.effect_noise((128, 128), 80).convert("RGB")
    for wanted in ("jpeg", "webp", "avif"):
        low, high = (make(saved(noise, "PNG"), format=wanted, quality=quality).data for quality in (10, 95))
        assert len(low) < len(high) / 2


REFUSED = {
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


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("size", [{}, {"width": 16}])
def test_what_cannot_be_read_says_why(make: Make, case: str, size: dict[str, int]) -> None:
    data, said = REFUSED[case]
    with pytest.raises(NoRetry, match=said):
        make(data, **size)


def test_too_many_frames_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_conversion, "FRAMES_MAX", 4)
    make(moving(4))
    with pytest.raises(NoRetry, match="5 frames"):
        make(moving(5))
    assert make(moving(5), format="png").told.frames == 1


def test_frames_count_together(make: Make) -> None:
    frames = [Image.new("P", (5_000, 5_000), color) for color in range(5)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(NoRetry, match="5 frames of 5000 × 5000 pixels"):
        make(data)


def test_what_would_become_too_large_is_refused(make: Make) -> None:
    with pytest.raises(NoRetry, match="would have 20000 × 10000 pixels"):
        make(saved(picture(), "PNG"), width=20_000, enlarge=True)


def test_what_a_format_cannot_hold_is_refused(make: Make) -> None:
    with pytest.raises(NoRetry, match="cannot be written as WEBP"):
        make(saved(Image.new("L", (20_000, 1)), "PNG"), format="webp")
