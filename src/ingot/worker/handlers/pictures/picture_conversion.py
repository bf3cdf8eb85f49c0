"""Converts an image file to another. The input is untrusted."""

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

PIXELS_MAX: Final = 100_000_000  # For all frames together. A pixel takes up to eight bytes while it is processed.
FRAMES_MAX: Final = 2_000
REDUCING_GAP: Final = 2.0  # A fast, coarse reduction stops at this multiple of the target size.
ORIENTATION_TAG: Final = 0x0112
# TIFF tags for the pixel layout and the colour profile. They describe the source file, so they are not copied.
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
ANIMATED_FORMATS: Final = frozenset({"gif", "webp"})  # Can be converted to each other with all frames.


class ConvertedPicture(NamedTuple):
    """The output of a conversion and its source. Sizes are those of the upright image."""

    format: Format
    size: Size
    frames: int
    source_format: str
    source_size: Size


def convert_picture(source: Path, output_path: Path, options: ImageOptions) -> ConvertedPicture:
    """Convert an image file. Raises `NoRetry` if it cannot be read or is too large."""
    with _open_picture(source) as picture:
        source_plugin = str(picture.format)
        format_name = options.format or INPUT_FORMATS[source_plugin]
        size = _upright_size(picture)
        _check_output_size(_placement_of(size, options).size)
        frames = _output_frame_count(picture, format_name)
        save = _save_animation if frames > 1 else _save_still
        output_size = save(picture, output_path, format_name, options)
        source_format = "jpeg" if source_plugin == "MPO" else source_plugin.lower()
        return ConvertedPicture(
            format=format_name, size=output_size, frames=frames, source_format=source_format, source_size=size
        )


@contextmanager
def _open_picture(source: Path) -> Iterator[Image.Image]:
    """Open an image, reading only its header. Raises `NoRetry` if it is not a supported image or is too large."""
    if source.stat().st_size == 0:
        raise NoRetry("the input is empty: it has 0 bytes")
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
            f"the input is not an image in a supported format; these are {', '.join(PILLOW_FORMATS)}"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise NoRetry(f"the image has more than {PIXELS_MAX} pixels") from None
    except MemoryError:
        raise NoRetry("the image needs more memory than a job of this type may use; send a smaller one") from None
    except Exception as error:  # Decoders raise exceptions of many types for damaged files.
        raise NoRetry(f"the image is damaged: {type(error).__name__}: {error}") from error


def _check_output_size(size: Size) -> None:
    if size.width * size.height > PIXELS_MAX:
        raise NoRetry(
            f"the output can have at most {PIXELS_MAX} pixels, but would have {size.width} × {size.height} pixels"
        )


def _output_frame_count(picture: Image.Image, format_name: Format) -> int:
    """Return how many frames to write: all if both formats support animation, and otherwise one."""
    source = INPUT_FORMATS[str(picture.format)]
    if not getattr(picture, "is_animated", False) or source in ("jpeg", "tiff"):
        return 1
    if format_name != source and not {format_name, source} <= ANIMATED_FORMATS:
        return 1
    frames = int(getattr(picture, "n_frames", 1))
    if frames > FRAMES_MAX or frames * picture.width * picture.height > PIXELS_MAX:
        raise NoRetry(
            f"the image has {frames} frames of {picture.width} × {picture.height} pixels; "
            f"at most {FRAMES_MAX} frames with {PIXELS_MAX} pixels in total are supported"
        )
    return frames


# -- still images -----------------------------------------------------------------------------------------------


def _save_still(picture: Image.Image, output_path: Path, format_name: Format, options: ImageOptions) -> Size:
    exif, profile = _exif_of(picture), picture.info.get("icc_profile")
    _decode_smaller(picture, options)
    picture.load()
    image = _resize_upright(picture, options)
    picture.close()  # Free the source pixels, which may take half of the memory.
    image, profile = convert_colours(image, profile, OUTPUT_FORMATS[format_name], options.background)
    _save(image, output_path, _save_options(format_name, options, profile, exif))
    return Size(*image.size)


def _decode_smaller(picture: Image.Image, options: ImageOptions) -> None:
    """Let Pillow decode a JPEG at a reduced size if the output is small. This saves time and memory."""
    if options.has_size:
        part, size = _placement_of(_upright_size(picture), options)
        scale = max(size.width / (part[2] - part[0]), size.height / (part[3] - part[1])) * REDUCING_GAP
        picture.draft(None, (round(picture.width * scale) or 1, round(picture.height * scale) or 1))


def _resize_upright(picture: Image.Image, options: ImageOptions) -> Image.Image:
    """Return the resized, upright pixels, without any metadata."""
    orientation = _orientation_of(picture)  # Pillow has already applied and removed the orientation of a TIFF.
    image = picture
    if options.has_size:
        size = Size(*picture.size)
        placement = _placement_of(size.rotated if orientation in SIDEWAYS_ORIENTATIONS else size, options)
        if orientation in SIDEWAYS_ORIENTATIONS:
            left, top, right, bottom = placement.source_box
            placement = Placement((top, left, bottom, right), placement.size.rotated)
        image = convert_for_resizing(picture).resize(
            placement.size, Image.Resampling.LANCZOS, box=placement.source_box, reducing_gap=REDUCING_GAP
        )
    else:
        image = picture if picture.mode in ("1", "P") else convert_for_resizing(picture)
    image = image.transpose(TRANSPOSITIONS[orientation]) if orientation in TRANSPOSITIONS else image
    image = image.copy() if image is picture else image
    image.info = {key: value for key, value in picture.info.items() if key == "transparency" and image.mode == "P"}
    return image


def _save_options(
    format_name: Format, options: ImageOptions, profile: bytes | None, exif: Image.Exif
) -> dict[str, Any]:
    """Return the keyword arguments for `Image.save`."""
    output_format = OUTPUT_FORMATS[format_name]
    save_options: dict[str, Any] = {"format": output_format.plugin, "icc_profile": profile}
    if output_format.quality is not None:
        save_options["quality"] = options.quality or output_format.quality
    if output_format.compression is not None:
        save_options["compression"] = output_format.compression
    if not options.strip and exif:
        for tag in {ORIENTATION_TAG, *LAYOUT_TAGS} & set(exif):  # The pixels are upright now.
            del exif[tag]
        save_options["exif"] = exif.tobytes()
        save_options.pop("compression", None)  # Forces Pillow's own TIFF writer: libtiff's does not write all tags.
    return save_options


# -- animations -------------------------------------------------------------------------------------------------


def _save_animation(picture: Image.Image, output_path: Path, format_name: Format, options: ImageOptions) -> Size:
    exif, profile = _exif_of(picture), picture.info.get("icc_profile")
    images, durations = [], []
    for frame in islice(ImageSequence.Iterator(picture), FRAMES_MAX):
        frame.load()
        durations.append(int(frame.info.get("duration", 0)))
        images.append(
            convert_colours(_resize_upright(frame, options), profile, OUTPUT_FORMATS[format_name], options.background)
        )
    (first, first_profile), *others = images
    save_options = _save_options(format_name, options, first_profile, exif) | {
        "save_all": True,
        "append_images": [image for image, _ in others],
    }
    save_options |= {"duration": durations, "loop": picture.info.get("loop", 1 if format_name == "webp" else None)}
    if format_name == "gif" and any(image.mode in TRANSPARENT_MODES for image, _ in images):
        save_options["disposal"] = 2  # Clear each frame before the next, or it would show through.
    _save(first, output_path, {key: value for key, value in save_options.items() if value is not None})
    return Size(*first.size)


def _save(image: Image.Image, output_path: Path, save_options: dict[str, Any]) -> None:
    try:
        image.save(output_path, **save_options)
    except (OSError, ValueError) as error:
        raise NoRetry(f"the image cannot be written as {save_options['format']}: {error}") from error


# -- size and orientation ---------------------------------------------------------------------------------------


def _placement_of(size: Size, options: ImageOptions) -> Placement:
    return fit_picture(size, options.width, options.height, fit=options.fit, enlarge=options.enlarge)


def _exif_of(picture: Image.Image) -> Image.Exif:
    try:
        return picture.getexif()
    except Exception:  # The metadata may be damaged although the pixels are not.
        return Image.Exif()


def _orientation_of(picture: Image.Image) -> int:
    orientation = _exif_of(picture).get(ORIENTATION_TAG, 1)
    return orientation if isinstance(orientation, int) else 1


def _upright_size(picture: Image.Image) -> Size:
    """Return the size of the upright image. For a TIFF, Pillow reports it directly."""
    size = Size(*picture.size)
    return size.rotated if picture.format != "TIFF" and _orientation_of(picture) in SIDEWAYS_ORIENTATIONS else size
