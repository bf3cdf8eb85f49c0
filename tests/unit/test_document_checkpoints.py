"""Conversion resumes after the pages of earlier attempts, and starts again if their checkpoints do not match."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import QuotaExceeded
from ingot.jobs.files import CHECKPOINT_NAME_DEFAULT
from ingot.worker.attempt_files import FileContent
from ingot.worker.handlers.documents import checkpoints, converting
from ingot.worker.handlers.documents.checkpoints import CheckpointHeader, FinishedPage, PageCheckpoints
from ingot.worker.handlers.documents.converting import ConvertedDocument, convert
from ingot.worker.handlers.documents.options import PdfOptions
from ingot.worker.job import Stopped
from scripts.make_samples import FOLDER
from tests.fake_job import FakeJob, install_converter
from tests.hostile_pdfs import many_pages

PAGES = 10


@pytest.fixture(autouse=True)
def _plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install_converter(tmp_path / "packages"))


def attempt(job: FakeJob, **options: Any) -> ConvertedDocument:
    """Convert the document of a job, with a checkpoint after every page."""
    folder = job.workdir() / "made"
    folder.mkdir()
    pdf_options = PdfOptions(converter="counting", **options)
    return convert(job.download(), pdf_options, folder=folder, progress=job, save_seconds=0.0)


def interrupted_attempt(folder: Path, *, at: int) -> dict[str, bytes]:
    """The checkpoints of an attempt that was stopped after this number of pages."""
    job = FakeJob(folder, many_pages(PAGES), stop_at=at)
    with pytest.raises(Stopped):
        attempt(job)
    return job.checkpoints


def test_the_next_attempt_continues_after_the_last_saved_page(tmp_path: Path) -> None:
    saved = interrupted_attempt(tmp_path / "1", at=3)
    assert sorted(saved) == ["0", "1", "2"]
    second, whole = (
        FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=saved),
        FakeJob(tmp_path / "3", many_pages(PAGES)),
    )
    resumed, uninterrupted = attempt(second), attempt(whole)
    assert (resumed.resumed_at, uninterrupted.resumed_at) == (4, None)
    assert second.stages == whole.stages[3:] == [f"page {page} of 10" for page in range(4, 11)]
    assert resumed.archive.read_bytes() == uninterrupted.archive.read_bytes()


def test_an_attempt_with_all_pages_saved_converts_none(tmp_path: Path) -> None:
    first = FakeJob(tmp_path / "1", many_pages(PAGES))
    uninterrupted = attempt(first)
    second = FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=first.checkpoints)
    resumed = attempt(second)
    assert (resumed.resumed_at, second.stages) == (PAGES, [])
    assert resumed.archive.read_bytes() == uninterrupted.archive.read_bytes()


class JobOverQuota(FakeJob):
    """A job whose checkpoints exceed the quota."""

    def save(self, source: FileContent, name: str = CHECKPOINT_NAME_DEFAULT) -> None:
        raise QuotaExceeded(scope="tenant", usage=10, limit=10)


def test_a_checkpoint_that_cannot_be_saved_does_not_fail_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempt(JobOverQuota(tmp_path / "1", many_pages(PAGES))).pages == PAGES
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MAX", 10)
    large = FakeJob(tmp_path / "2", many_pages(PAGES))
    assert (attempt(large).pages, large.checkpoints) == (PAGES, {})


def test_pictures_of_earlier_attempts_are_in_the_archive(tmp_path: Path) -> None:
    sample = (FOLDER / "pictures.pdf").read_bytes()
    first = FakeJob(tmp_path / "1", sample, stop_at=1)
    with pytest.raises(Stopped):
        attempt(first)
    resumed = attempt(FakeJob(tmp_path / "2", sample, checkpoints=first.checkpoints))
    whole = attempt(FakeJob(tmp_path / "3", sample))
    assert resumed.resumed_at == 2
    assert len(whole.pictures) == 2
    assert resumed.archive.read_bytes() == whole.archive.read_bytes()


def test_pictures_that_earlier_attempts_left_out_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "PICTURES_MAX", 0)
    sample = (FOLDER / "pictures.pdf").read_bytes()
    first = FakeJob(tmp_path / "1", sample, stop_at=1)
    with pytest.raises(Stopped):
        attempt(first)
    whole = attempt(FakeJob(tmp_path / "2", sample))
    resumed = attempt(FakeJob(tmp_path / "3", sample, checkpoints=first.checkpoints))
    assert (whole.pictures, resumed.pictures) == ([], [])
    assert resumed.pictures_left_out == whole.pictures_left_out > 0


def test_the_front_matter_names_the_selected_pages(tmp_path: Path) -> None:
    some = attempt(FakeJob(tmp_path / "1", many_pages(PAGES)), pages="2-3,5")
    assert "pages: 10\n" in some.markdown.read_text()
    assert 'converted_pages: "2-3,5"\n' in some.markdown.read_text()
    assert "converted_pages" not in attempt(FakeJob(tmp_path / "2", many_pages(PAGES))).markdown.read_text()


@pytest.mark.parametrize(
    ("source", "options", "name"),
    [
        (many_pages(PAGES) + b"\n", {}, "sheet.pdf"),
        (many_pages(PAGES), {"images": False}, "sheet.pdf"),
        (many_pages(PAGES), {}, "other.pdf"),
    ],
    ids=["another file", "other options", "another name"],
)
def test_checkpoints_of_another_file_or_other_options_are_ignored(
    tmp_path: Path, source: bytes, options: dict[str, Any], name: str
) -> None:
    saved = interrupted_attempt(tmp_path / "1", at=3)
    second = FakeJob(tmp_path / "2", source, name=name, checkpoints=saved)
    assert attempt(second, **options).resumed_at is None
    assert len(second.stages) == PAGES


@pytest.mark.parametrize("damage", [b"", b"no part", zlib.compress(b"\xc1"), zlib.compress(msgspec.msgpack.encode({}))])
def test_checkpoints_are_used_up_to_the_first_damaged_one(tmp_path: Path, damage: bytes) -> None:
    saved = interrupted_attempt(tmp_path / "1", at=3) | {"1": damage}
    assert attempt(FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=saved)).resumed_at == 2


def test_a_checkpoint_out_of_order_is_ignored(tmp_path: Path) -> None:
    saved = interrupted_attempt(tmp_path / "1", at=4)
    swapped = {"0": saved["0"], "1": saved["3"]}
    assert attempt(FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=swapped)).resumed_at == 2


def test_a_checkpoint_contains_all_pages_since_the_previous_one(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, b"")
    header = CheckpointHeader(source="a", options="{}", converter="c 1")
    pages = PageCheckpoints(job, header, save_seconds=3600.0)
    pages.add(FinishedPage(number=1, text="small"))
    assert job.checkpoints == {}
    pages.add(FinishedPage(number=2, text="x" * checkpoints.PART_FULL_BYTES))
    later = PageCheckpoints(job, header)
    assert (later.load(), [page.number for page in later.pages]) == (2, [1, 2])


def test_a_long_conversion_has_few_checkpoints() -> None:
    wait, worked, parts = checkpoints.SAVE_SECONDS, 0.0, 0
    while worked < 3600:
        worked, wait, parts = worked + wait, wait * checkpoints.SAVE_SECONDS_GROWTH, parts + 1
    assert parts < 100
