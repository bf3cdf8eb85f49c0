"""The handler `image`: resizes images, converts them to other formats, and removes metadata."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ingot.worker.handlers.inputs import only_input, output_stem
from ingot.worker.handlers.options import read_options
from ingot.worker.handlers.pictures.formats import OUTPUT_FORMATS
from ingot.worker.handlers.pictures.options import ImageOptions
from ingot.worker.handlers.pictures.picture_conversion import convert_picture
from ingot.worker.job import WorkerJob


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An image file. Width and height are those of the upright image; `size` is in bytes."""

    name: str
    width: int
    height: int
    format: str
    size: int


class ImageResult(ImageInfo, frozen=True, kw_only=True):
    """The output image and its source."""

    frames: int
    source: ImageInfo


def handle(job: WorkerJob) -> Any:
    """Convert the only input of the job. Raises `NoRetry` if it is not an image."""
    options = read_options(job.payload, ImageOptions)
    name = only_input(job.inputs)
    job.progress(5, "fetching")
    source = job.download()
    job.progress(30, "drawing")
    with TemporaryDirectory(dir=job.workdir()) as folder:
        output_path = Path(folder) / "output"
        converted = convert_picture(source, output_path, options)
        job.progress(80, "storing")
        output_format = OUTPUT_FORMATS[converted.format]
        output = job.upload(output_path, output_stem(name) + output_format.suffix, output_format.content_type)
    return ImageResult(
        name=output.name,
        width=converted.size.width,
        height=converted.size.height,
        format=converted.format,
        size=output.size,
        frames=converted.frames,
        source=ImageInfo(
            name=name,
            width=converted.source_size.width,
            height=converted.source_size.height,
            format=converted.source_format,
            size=source.stat().st_size,
        ),
    )
