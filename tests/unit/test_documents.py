"""Which files are documents: in folders, by patterns, by name and by their first bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ingot.cli.document_files import (
    IN_MEMORY_BYTES_MAX,
    SKIPPED_BROKEN_LINK,
    SKIPPED_BY_PATTERN,
    SKIPPED_NOT_A_FILE,
    SKIPPED_OTHER_KIND,
    ContentMismatch,
    DocumentFile,
    DocumentFilter,
    DocumentSelection,
    check_document,
    find_documents,
    read_document,
)
from ingot.cli.ingest_pipeline import output_folder, printable_path
from ingot.cli.local_files import FileRefused
from ingot.kernel.errors import InvalidInput

PDF = b"%PDF-1.7\n"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.pdf", "a/2.PDF", "a/1.pdf", "a/scan.png", "a/notes.txt", ".git/x.pdf", "CVS/y.pdf", "a/.z.pdf"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG if path.suffix == ".png" else PDF)
    return tmp_path / "docs"


def found(*paths: Path, said: list[str] | None = None, **wanted: Any) -> DocumentSelection:
    return find_documents(paths, DocumentFilter(**wanted), (said if said is not None else []).append)


def places(result: DocumentSelection) -> list[tuple[str, str]]:
    return [(one.relative_path.as_posix(), one.type) for one in result.documents]


def test_a_folder_is_walked_in_order_without_what_is_hidden(folder: Path) -> None:
    result = found(folder)
    assert places(result) == [("b.pdf", "pdf"), ("a/1.pdf", "pdf"), ("a/2.PDF", "pdf"), ("a/scan.png", "ocr")]
    assert result.skipped == {SKIPPED_OTHER_KIND: 1}


@pytest.mark.parametrize(
    ("type", "taken"),
    [
        ("pdf", ["b.pdf", "a/1.pdf", "a/2.PDF"]),
        ("ocr", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/scan.png"]),
        ("image", ["a/scan.png"]),
        ("mine", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/notes.txt", "a/scan.png"]),
    ],
)
def test_of_a_folder_a_type_takes_what_is_of_use_for_it(folder: Path, type: str, taken: list[str]) -> None:
    assert places(found(folder, type=type)) == [(name, type) for name in taken]


def test_a_file_that_is_named_is_taken_or_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"notes\.txt"):
        found(folder / "a" / "notes.txt")
    (taken,) = found(folder / "a" / "notes.txt", type="pdf").documents
    assert (taken.relative_path, taken.type, taken.check_content, read_document(taken)) == (
        Path("notes.txt"),
        "pdf",
        False,
        PDF,
    )


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("**/*.pdf", ["b.pdf", "a/1.pdf"]),
        ("*.pdf", ["b.pdf"]),
        ("*/[12].*", ["a/1.pdf", "a/2.PDF"]),
        ("*/[!1].*", ["a/2.PDF"]),
        ("a/?.pdf", ["1.pdf"]),
        ("**", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/scan.png"]),
    ],
)
def test_a_pattern_takes_what_fits_it(folder: Path, pattern: str, taken: list[str]) -> None:
    assert [place for place, _ in places(found(folder / pattern))] == taken


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[1].pdf").write_bytes(PDF)
    assert places(found(folder / "[1].pdf")) == [("[1].pdf", "pdf")]


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({"include": ("*.pdf",)}, ["b.pdf", "a/1.pdf"]),
        ({"include": ("a/*",)}, ["a/1.pdf", "a/2.PDF", "a/scan.png"]),
        ({"exclude": ("*.pdf", "a/scan.*")}, ["a/2.PDF"]),
        ({"include": ("a/**",), "exclude": ("1.*",)}, ["a/2.PDF", "a/scan.png"]),
    ],
)
def test_patterns_let_in_and_leave_out(folder: Path, wanted: dict[str, Any], taken: list[str]) -> None:
    result = found(folder, **wanted)
    assert [place for place, _ in places(result)] == taken
    assert result.skipped[SKIPPED_BY_PATTERN] == 4 - len(taken)


def test_a_pattern_that_cannot_be_read_is_told(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\[z-a\]\.pdf"):
        found(folder, include=("[z-a].pdf",))


def test_the_same_file_is_taken_once(folder: Path) -> None:
    assert len(found(folder, folder / "a", folder / "b.pdf", folder / "a" / ".." / "b.pdf").documents) == 4


def test_links_are_followed_to_files_and_not_in_circles(folder: Path) -> None:
    (folder / "circle").symlink_to(folder, target_is_directory=True)
    (folder / "loop.pdf").symlink_to("loop.pdf")
    (folder / "gone.pdf").symlink_to("nowhere")
    (folder / "link.pdf").symlink_to("b.pdf")
    said: list[str] = []
    result = found(folder, said=said)
    assert [place for place, _ in places(result)][:2] == ["b.pdf", "link.pdf"]
    assert (len(result.documents), result.skipped[SKIPPED_BROKEN_LINK], len(said)) == (5, 2, 2)
    assert places(found(folder / "**" / "*.png")) == [("a/scan.png", "ocr")]
    with pytest.raises(InvalidInput, match=r"gone\.pdf"):
        found(folder / "gone.pdf")


def test_what_is_no_file_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.pdf")
    assert found(folder).skipped[SKIPPED_NOT_A_FILE] == 1
    with pytest.raises(InvalidInput, match=r"pipe\.pdf"):
        found(folder / "pipe.pdf")


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere"):
        found(tmp_path / "nowhere")
    assert found(tmp_path / "no*where").documents == []


def document(path: Path, content: bytes, *, checked: bool = True) -> DocumentFile:
    path.write_bytes(content)
    return DocumentFile(path=path, relative_path=Path(path.name), type="pdf", size=len(content), check_content=checked)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pdf", b"\xef\xbb\xbf\n%PDF-1.4"),
        ("a.png", PNG),
        ("a.jpg", b"\xff\xd8\xff\xe0"),
        ("a.tif", b"II*\0"),
        ("a.tiff", b"MM\0*"),
        ("a.webp", b"RIFF\x0a\0\0\nWEBPVP8 "),
        ("a.bmp", b"BM6"),
        ("a.jpeg", PNG),  # A picture all the same.
    ],
)
def test_a_document_is_known_by_its_first_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    known = document(tmp_path / name, content)
    check_document(known)
    assert read_document(known) == content


@pytest.mark.parametrize(("name", "content"), [("a.pdf", b""), ("a.pdf", PNG), ("a.png", PDF), ("a.bmp", b"text")])
def test_what_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    known = document(tmp_path / name, content)
    for look in (read_document, check_document):
        with pytest.raises(ContentMismatch):
            look(known)


def test_what_is_small_is_read_once_and_what_is_not_stays_where_it_is(tmp_path: Path) -> None:
    small = document(tmp_path / "small.pdf", PDF.ljust(IN_MEMORY_BYTES_MAX))
    large = document(tmp_path / "large.pdf", PDF.ljust(IN_MEMORY_BYTES_MAX + 1))
    assert (read_document(small), read_document(large)) == (PDF.ljust(IN_MEMORY_BYTES_MAX), large.path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "memory.pdf").symlink_to("/proc/self/mem")  # Which nobody may read at 0, root neither.
    (found_one,) = found(tmp_path).documents
    with pytest.raises(FileRefused, match="cannot be read"):
        read_document(found_one)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("a.pdf", "a"), ("...pdf", "...pdf"), ("..pdf", "..pdf"), (".pdf", ".pdf"), ("a.b.pdf", "a.b")],
)
def test_what_comes_of_a_document_stays_below_the_output(tmp_path: Path, name: str, folder: str) -> None:
    document = DocumentFile(path=tmp_path / name, relative_path=Path(name), type="pdf", size=1)
    assert output_folder(Path("out"), document) == Path("out") / folder


def test_a_name_cannot_make_a_line_of_its_own() -> None:
    assert printable_path(Path("a\ndone  1  b\x1b[2J.pdf")) == "a\ufffddone  1  b\ufffd[2J.pdf"
