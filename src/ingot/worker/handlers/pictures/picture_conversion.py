"""A picture made of another. What is read was sent by somebody, and is taken for hostile."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from PIL import Image, ImageSequence, UnidentifiedImageError

from ingot.worker.handlers.pictures.colours import TRANSPARENT_MODES, convert_colours, convert_for_resizing
from ingot.worker.handlers.pictures.fitting import Placement, Size, fit_picture
from ingot.worker.handlers.pictures.formats import INPUT_FORMATS, OUTPUT_FORMATS, PILLOW_FORMATS, Format
from ingot.worker.handlers.pictures.options import ImageOptions
from ingot.worker.job import NoRetry

PIXELS_MAX: Final = 100_000_000  # Of all frames that are kept. One takes four bytes, and as many again in work.
FRAMES_MAX: Final = 2_000
REDUCING_GAP: Final = 2.0  # How much larger than it gets a picture is while it is reduced in the quick way.
ORIENTATION_TAG: Final = 0x0112
# How the pixels lie in a TIFF, and the profile of their colours: of the file that is read, not of what is made.
LAYOUT_TAGS: Final = frozenset(
    {*range(254, 260), 262, 266, 273, 277, 278, 279, 284, 317, 320, *range(322, 326), 330, 338, 339, 347, 513, 514}
    | {*range(529, 533), 34675}
)
TRANSPOSITIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS_ORIENTATIONS: Final = frozenset({5, 6, 7, 8})
ANIMATED_FORMATS: Final = frozenset({"gif", "webp"})  # Become each other with all of their frames.


class ConvertedPicture(NamedTuple):
    """What came of a picture, and what it was: sizes as it is shown, upright."""

    format: Format
    size: Size
    frames: int
    source_format: str
    source_size: Size


def convert_picture(source: Path, made: Path, options: ImageOptions) -> ConvertedPicture:
    """Make a picture of the one in a file. Raises `NoRetry` for what cannot be read, and for what is too large."""
    with _open_picture(source) as picture:
        had = str(picture.format)
        kind = options.format or INPUT_FORMATS[had]
        size = _upright_size(picture)
        _check_output_size(_placement_of(size, options).size)
        frames = _output_frame_count(picture, kind)
        save = _save_animation if frames > 1 else _save_still
        shown = save(picture, made, kind, options)
        source_format = "jpeg" if had == "MPO" else had.lower()
        return ConvertedPicture(format=kind, size=shown, frames=frames, source_format=source_format, source_size=size)


@contextmanager
def _open_picture(source: Path) -> Iterator[Image.Image]:
    """A picture of which only the header was read, and which is small enough for the rest. Raises `NoRetry`."""
    if source.stat().st_size == 0:
        raise NoRetry("the input is empty: it has no bytes")
    Image.MAX_IMAGE_PIXELS = PIXELS_MAX
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=PILLOW_FORMATS) as picture:
                yield picture
    except NoRetry:
        raise
    except UnidentifiedImageError:
        raise NoRetry(
            f"the input is not a picture of a format that is read here: {', '.join(PILLOW_FORMATS)}"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise NoRetry(f"the picture has more than {PIXELS_MAX} pixels") from None
    except MemoryError:
        raise NoRetry("the picture needs more memory than a job of this type may use; make it smaller first") from None
    except Exception as error:  # Decoders raise whatever they stumble over.
        raise NoRetry(f"the picture is damaged: {type(error).__name__}: {error}") from error


def _check_output_size(size: Size) -> None:
    if size.width * size.height > PIXELS_MAX:
        raise NoRetry(f"the picture would have {size.width} × {size.height} pixels; {PIXELS_MAX} is the most")


def _output_frame_count(picture: Image.Image, kind: Format) -> int:
    """How many frames are written: all, where the format has them as the picture does, or else the first."""
    source = INPUT_FORMATS[str(picture.format)]
    if not getattr(picture, "is_animated", False) or source in ("jpeg", "tiff"):
        return 1
    if kind != source and not {kind, source} <= ANIMATED_FORMATS:
        return 1
    frames = int(getattr(picture, "n_frames", 1))
    if frames > FRAMES_MAX or frames * picture.width * picture.height > PIXELS_MAX:
        raise NoRetry(
            f"the picture has {frames} frames of {picture.width} × {picture.height} pixels; "
            f"{FRAMES_MAX} frames with {PIXELS_MAX} pixels together are the most"
        )
    return frames


# -- one picture ------------------------------------------------------------------------------------------------


def _save_still(picture: Image.Image, made: Path, kind: Format, options: ImageOptions) -> Size:
    exif, profile = _exif_of(picture), picture.info.get("icc_profile")
    _decode_smaller(picture, options)
    picture.load()
    image = _resize_upright(picture, options)
    picture.close()  # Its pixels are not needed any more, and may be half of all memory.
    image, profile = convert_colours(image, profile, OUTPUT_FORMATS[kind], options.background)
    _save(image, made, _save_options(kind, options, profile, exif))
    return Size(*image.size)


def _decode_smaller(picture: Image.Image, options: ImageOptions) -> None:
    """Have a large JPEG decoded smaller, when little of it is wanted: that takes less time and memory."""
    if options.has_size:
        part, size = _placement_of(_upright_size(picture), options)
        scale = max(size.width / (part[2] - part[0]), size.height / (part[3] - part[1])) * REDUCING_GAP
        picture.draft(None, (round(picture.width * scale) or 1, round(picture.height * scale) or 1))


def _resize_upright(picture: Image.Image, options: ImageOptions) -> Image.Image:
    """The picture in its size and upright, without anything else that the file says: only pixels come along."""
    turn = _orientation_of(picture)  # That of a TIFF was undone by Pillow when it was loaded.
    image = picture
    if options.has_size:
        size = Size(*picture.size)
        placing = _placement_of(size.rotated if turn in SIDEWAYS_ORIENTATIONS else size, options)
        if turn in SIDEWAYS_ORIENTATIONS:
            left, top, right, bottom = placing.source_box
            placing = Placement((top, left, bottom, right), placing.size.rotated)
        image = convert_for_resizing(picture).resize(
            placing.size, Image.Resampling.LANCZOS, box=placing.source_box, reducing_gap=REDUCING_GAP
        )
    else:
        image = picture if picture.mode in ("1", "P") else convert_for_resizing(picture)
    image = image.transpose(TRANSPOSITIONS[turn]) if turn in TRANSPOSITIONS else image
    image = image.copy() if image is picture else image
    image.info = {key: value for key, value in picture.info.items() if key == "transparency" and image.mode == "P"}
    return image


def _save_options(kind: Format, options: ImageOptions, profile: bytes | None, exif: Image.Exif) -> dict[str, Any]:
    """What Pillow is told beside the pixels."""
    writing = OUTPUT_FORMATS[kind]
    told: dict[str, Any] = {"format": writing.plugin, "icc_profile": profile}
    if writing.quality is not None:
        told["quality"] = options.quality or writing.quality
    if writing.compression is not None:
        told["compression"] = writing.compression
    if not options.strip and exif:
        for tag in {ORIENTATION_TAG, *LAYOUT_TAGS} & set(exif):  # It is upright now.
            del exif[tag]
        told["exif"] = exif.tobytes()
        told.pop("compression", None)  # Pillow's own writer of TIFF has all tags, and libtiff's has not.
    return told


# -- one that moves ---------------------------------------------------------------------------------------------


def _save_animation(picture: Image.Image, made: Path, kind: Format, options: ImageOptions) -> Size:
    exif, profile = _exif_of(picture), picture.info.get("icc_profile")
    images, durations = [], []
    for frame in islice(ImageSequence.Iterator(picture), FRAMES_MAX):
        frame.load()
        durations.append(int(frame.info.get("duration", 0)))
        images.append(
            convert_colours(_resize_upright(frame, options), profile, OUTPUT_FORMATS[kind], options.background)
        )
    (first, kept), *others = images
    told = _save_options(kind, options, kept, exif) | {
        "save_all": True,
        "append_images": [image for image, _ in others],
    }
    told |= {"duration": durations, "loop": picture.info.get("loop", 1 if kind == "webp" else None)}
    if kind == "gif" and any(image.mode in TRANSPARENT_MODES for image, _ in images):
        told["disposal"] = 2  # What was drawn before is taken away: it would be seen through this one.
    _save(first, made, {key: value for key, value in told.items() if value is not None})
    return Size(*first.size)


def _save(image: Image.Image, made: Path, told: dict[str, Any]) -> None:
    try:
        image.save(made, **told)
    except (OSError, ValueError) as error:
        raise NoRetry(f"the picture cannot be written as {told['format']}: {error}") from error


# -- how it stands ----------------------------------------------------------------------------------------------


def _placement_of(size: Size, options: ImageOptions) -> Placement:
    return fit_picture(size, options.width, options.height, fit=options.fit, enlarge=options.enlarge)


def _exif_of(picture: Image.Image) -> Image.Exif:
    try:
        return picture.getexif()
    except Exception:  # What a picture says of itself may be damaged when the picture is not.
        return Image.Exif()


def _orientation_of(picture: Image.Image) -> int:
    turn = _exif_of(picture).get(ORIENTATION_TAG, 1)
    return turn if isinstance(turn, int) else 1


def _upright_size(picture: Image.Image) -> Size:
    """The size of a picture as it is shown. Pillow tells that of a TIFF so by itself."""
    size = Size(*picture.size)
    return size.rotated if picture.format != "TIFF" and _orientation_of(picture) in SIDEWAYS_ORIENTATIONS else size
