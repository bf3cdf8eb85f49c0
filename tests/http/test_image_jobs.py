"""Jobs of the type `image`, from the upload to the converted image, with a real server and isolated processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import Image

from ingot import Worker, testing
from ingot.jobs.model import JobStatus
from ingot.worker.handlers.image import handle
from tests.sample_images import BLUE, GPS, RED, bomb, gif_bomb, opened, photo, picture, saved


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    worker = Worker()
    worker.include("image", concurrency=2)
    with testing.start(worker) as local_ingot:
        yield local_ingot


def test_a_photo_becomes_a_thumbnail_without_metadata(ingot: testing.LocalIngot) -> None:
    data = photo(orientation=6, width=640, height=320)
    job = ingot.client.submit("image", {"width": 100, "format": "webp"}, file={"Holiday 1.JPG": data})
    ingot.drain(raise_errors=True)
    content = job.refresh().outputs["Holiday 1.webp"].bytes()
    assert job.result == {
        "name": "Holiday 1.webp",
        "width": 100,
        "height": 200,
        "format": "webp",
        "size": len(content),
        "frames": 1,
        "source": {"name": "Holiday 1.JPG", "width": 320, "height": 640, "format": "jpeg", "size": len(data)},
    }
    thumbnail = opened(content)
    assert (thumbnail.format, thumbnail.size, dict(thumbnail.getexif().get_ifd(GPS))) == ("WEBP", (100, 200), {})
    for point, colour in (((50, 10), RED), ((50, 190), BLUE)):
        pixel = thumbnail.convert("RGB").getpixel(point)
        assert isinstance(pixel, tuple)
        assert max(abs(actual - expected) for actual, expected in zip(pixel, colour, strict=True)) < 40
    (file,) = (file for file in job.files() if file.kind == "output")
    assert file.content_type == "image/webp"


def test_a_malicious_image_is_dead_after_one_attempt_and_the_worker_continues(ingot: testing.LocalIngot) -> None:
    hostile = {
        "bomb.png": (bomb(), "pixels"),
        "cut.jpg": (photo()[:-200], "damaged"),
        "bomb.gif": (gif_bomb(), "pixels"),
    }
    jobs = {name: ingot.client.submit("image", file={name: data}) for name, (data, _) in hostile.items()}
    valid = ingot.client.submit("image", file={"fine.png": saved(picture(), "PNG")})
    ingot.drain()
    for name, job in jobs.items():
        assert (job.refresh().status, job.data.attempts) == (JobStatus.DEAD, 1), name
        assert hostile[name][1] in (job.error or ""), name
    assert valid.refresh().status is JobStatus.SUCCEEDED


def test_an_image_that_needs_too_much_memory_reports_the_memory_limit() -> None:
    worker = Worker()
    worker.handler("image", isolate=True, memory_mb=192)(handle)
    data = saved(Image.new("L", (8_000, 8_000)).convert("P"), "PNG", compress_level=1)
    with testing.start(worker) as ingot:
        job = ingot.client.submit("image", {"width": 7_000}, file={"large.png": data})
        ingot.drain()
        assert (job.refresh().status, job.data.attempts) == (JobStatus.DEAD, 1)
        assert "more memory than a job of this type may use" in (job.error or "")


def test_wrong_options_and_inputs_are_reported(ingot: testing.LocalIngot) -> None:
    wrong = ingot.client.submit("image", {"widht": 5}, file={"a.png": saved(picture(), "PNG")})
    two = ingot.client.submit("image", file={"a.png": b"1", "b.png": b"2"})
    ingot.drain()
    assert "unknown option 'widht'" in (wrong.refresh().error or "")
    assert [job.refresh().status for job in (wrong, two)] == [JobStatus.DEAD] * 2
    assert "exactly one input file, got 2" in (two.error or "")
