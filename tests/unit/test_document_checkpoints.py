"""Documents go on where the last attempt stopped, and begin anew when what was kept is of something else."""

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
    """Convert with a desk that keeps every page."""
    folder = job.workdir() / "made"
    folder.mkdir()
    known = PdfOptions(converter="counting", **options)
    return convert(job.download(), known, folder=folder, progress=job, save_seconds=0.0)


def broken_off(folder: Path, *, at: int) -> dict[str, bytes]:
    """What an attempt kept that stopped after so many pages."""
    job = FakeJob(folder, many_pages(PAGES), stop_at=at)
    with pytest.raises(Stopped):
        attempt(job)
    return job.checkpoints


def test_the_next_attempt_goes_on_at_the_page_that_was_reached(tmp_path: Path) -> None:
    kept = broken_off(tmp_path / "1", at=3)
    assert sorted(kept) == ["0", "1", "2"]
    second, whole = (
        FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=kept),
        FakeJob(tmp_path / "3", many_pages(PAGES)),
    )
    resumed, made = attempt(second), attempt(whole)
    assert (resumed.resumed_at, made.resumed_at) == (4, None)
    assert second.stages == whole.stages[3:] == [f"page {page} of 10" for page in range(4, 11)]
    assert resumed.archive.read_bytes() == made.archive.read_bytes()


def test_an_attempt_that_has_all_pages_only_puts_them_together(tmp_path: Path) -> None:
    first = FakeJob(tmp_path / "1", many_pages(PAGES))
    made = attempt(first)
    second = FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=first.checkpoints)
    resumed = attempt(second)
    assert (resumed.resumed_at, second.stages) == (PAGES, [])
    assert resumed.archive.read_bytes() == made.archive.read_bytes()


class Full(FakeJob):
    """A desk that keeps nothing: the quota is used up."""

    def save(self, source: FileContent, name: str = CHECKPOINT_NAME_DEFAULT) -> None:
        raise QuotaExceeded(scope="tenant", usage=10, limit=10)


def test_what_cannot_be_kept_costs_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt(Full(tmp_path / "1", many_pages(PAGES))).pages == PAGES
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MAX", 10)
    large = FakeJob(tmp_path / "2", many_pages(PAGES))
    assert (attempt(large).pages, large.checkpoints) == (PAGES, {})


def test_pictures_of_earlier_attempts_are_there_again(tmp_path: Path) -> None:
    sample = (FOLDER / "pictures.pdf").read_bytes()
    first = FakeJob(tmp_path / "1", sample, stop_at=1)
    with pytest.raises(Stopped):
        attempt(first)
    resumed = attempt(FakeJob(tmp_path / "2", sample, checkpoints=first.checkpoints))
    whole = attempt(FakeJob(tmp_path / "3", sample))
    assert resumed.resumed_at == 2
    assert len(whole.pictures) == 2
    assert resumed.archive.read_bytes() == whole.archive.read_bytes()


def test_pictures_that_earlier_attempts_left_out_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "PICTURES_MAX", 0)
    sample = (FOLDER / "pictures.pdf").read_bytes()
    first = FakeJob(tmp_path / "1", sample, stop_at=1)
    with pytest.raises(Stopped):
        attempt(first)
    whole = attempt(FakeJob(tmp_path / "2", sample))
    resumed = attempt(FakeJob(tmp_path / "3", sample, checkpoints=first.checkpoints))
    assert (whole.pictures, resumed.pictures) == ([], [])
    assert resumed.pictures_left_out == whole.pictures_left_out > 0


def test_the_pages_that_were_asked_for_are_told_above_the_text(tmp_path: Path) -> None:
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
def test_what_was_kept_of_something_else_is_not_used(
    tmp_path: Path, source: bytes, options: dict[str, Any], name: str
) -> None:
    kept = broken_off(tmp_path / "1", at=3)
    second = FakeJob(tmp_path / "2", source, name=name, checkpoints=kept)
    assert attempt(second, **options).resumed_at is None
    assert len(second.stages) == PAGES


@pytest.mark.parametrize("damage", [b"", b"no part", zlib.compress(b"\xc1"), zlib.compress(msgspec.msgpack.encode({}))])
def test_a_part_that_cannot_be_read_ends_what_is_used(tmp_path: Path, damage: bytes) -> None:
    kept = broken_off(tmp_path / "1", at=3) | {"1": damage}
    assert attempt(FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=kept)).resumed_at == 2


def test_a_part_that_does_not_follow_is_not_used(tmp_path: Path) -> None:
    kept = broken_off(tmp_path / "1", at=4)
    swapped = {"0": kept["0"], "1": kept["3"]}
    assert attempt(FakeJob(tmp_path / "2", many_pages(PAGES), checkpoints=swapped)).resumed_at == 2


def test_a_part_holds_all_pages_since_the_last_one(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, b"")
    header = CheckpointHeader(source="a", options="{}", converter="c 1")
    pages = PageCheckpoints(job, header, save_seconds=3600.0)
    pages.add(FinishedPage(number=1, text="small"))
    assert job.checkpoints == {}
    pages.add(FinishedPage(number=2, text="x" * checkpoints.PART_FULL_BYTES))
    later = PageCheckpoints(job, header)
    assert (later.load(), [page.number for page in later.pages]) == (2, [1, 2])


def test_long_work_has_few_parts() -> None:
    wait, worked, parts = checkpoints.SAVE_SECONDS, 0.0, 0
    while worked < 3600:
        worked, wait, parts = worked + wait, wait * checkpoints.SAVE_SECONDS_GROWTH, parts + 1
    assert parts < 100
