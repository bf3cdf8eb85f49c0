"""Pictures: made smaller, written in another format, and rid of what they tell of those who took them."""

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
    """A picture in a file: its width and height as it is shown, and the bytes of the file."""

    name: str
    width: int
    height: int
    format: str
    size: int


class ImageResult(ImageInfo, frozen=True, kw_only=True):
    """The picture that was made, and of what."""

    frames: int
    source: ImageInfo


def handle(job: WorkerJob) -> Any:
    """Make a picture of the job's only input, as its options say. Raises `NoRetry` for what is no picture."""
    options = read_options(job.payload, ImageOptions)
    name = only_input(job.inputs)
    job.progress(5, "fetching")
    source = job.download()
    job.progress(30, "drawing")
    with TemporaryDirectory(dir=job.workdir()) as folder:
        made = Path(folder) / "made"
        drawn = convert_picture(source, made, options)
        job.progress(80, "storing")
        writing = OUTPUT_FORMATS[drawn.format]
        stored = job.upload(made, output_stem(name) + writing.suffix, writing.content_type)
    return ImageResult(
        name=stored.name,
        width=drawn.size.width,
        height=drawn.size.height,
        format=drawn.format,
        size=stored.size,
        frames=drawn.frames,
        source=ImageInfo(
            name=name,
            width=drawn.source_size.width,
            height=drawn.source_size.height,
            format=drawn.source_format,
            size=source.stat().st_size,
        ),
    )
