"""Pictures: made smaller, written in another format, and rid of what they tell of those who took them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ingot.worker.handlers.inputs import only_input, stem_of
from ingot.worker.handlers.options import read_options
from ingot.worker.handlers.pictures.drawing import draw
from ingot.worker.handlers.pictures.formats import WRITTEN
from ingot.worker.handlers.pictures.options import Options
from ingot.worker.job import WorkerJob


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in a file: its width and height as it is shown, and the bytes of the file."""

    name: str
    width: int
    height: int
    format: str
    size: int


class Made(Picture, frozen=True, kw_only=True):
    """The picture that was made, and of what."""

    frames: int
    source: Picture


def handle(job: WorkerJob) -> Any:
    """Make a picture of the job's only input, as its options say. Raises `NoRetry` for what is no picture."""
    options = read_options(job.payload, Options)
    name = only_input(job.inputs)
    job.progress(5, "fetching")
    source = job.download()
    job.progress(30, "drawing")
    with TemporaryDirectory(dir=job.room()) as folder:
        made = Path(folder) / "made"
        drawn = draw(source, made, options)
        job.progress(80, "storing")
        writing = WRITTEN[drawn.format]
        stored = job.upload(made, stem_of(name) + writing.suffix, writing.content_type)
    return Made(
        name=stored.name,
        width=drawn.size.width,
        height=drawn.size.height,
        format=drawn.format,
        size=stored.size,
        frames=drawn.frames,
        source=Picture(
            name=name,
            width=drawn.source_size.width,
            height=drawn.source_size.height,
            format=drawn.source_format,
            size=source.stat().st_size,
        ),
    )
