"""Finding documents: in folders, with patterns, by name and by their first bytes."""

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


def select(*paths: Path, notices: list[str] | None = None, **options: Any) -> DocumentSelection:
    return find_documents(paths, DocumentFilter(**options), (notices if notices is not None else []).append)


def paths_and_types(result: DocumentSelection) -> list[tuple[str, str]]:
    return [(file.relative_path.as_posix(), file.type) for file in result.documents]


def test_a_folder_is_walked_in_order_without_hidden_files(folder: Path) -> None:
    result = select(folder)
    assert paths_and_types(result) == [("b.pdf", "pdf"), ("a/1.pdf", "pdf"), ("a/2.PDF", "pdf"), ("a/scan.png", "ocr")]
    assert result.skipped == {SKIPPED_OTHER_KIND: 1}


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("pdf", ["b.pdf", "a/1.pdf", "a/2.PDF"]),
        ("ocr", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/scan.png"]),
        ("image", ["a/scan.png"]),
        ("mine", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/notes.txt", "a/scan.png"]),
    ],
)
def test_a_type_selects_the_files_that_it_supports(folder: Path, type: str, expected: list[str]) -> None:
    assert paths_and_types(select(folder, type=type)) == [(name, type) for name in expected]


def test_an_explicit_file_is_selected_or_rejected(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"notes\.txt"):
        select(folder / "a" / "notes.txt")
    (selected,) = select(folder / "a" / "notes.txt", type="pdf").documents
    assert (selected.relative_path, selected.type, selected.check_content, read_document(selected)) == (
        Path("notes.txt"),
        "pdf",
        False,
        PDF,
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.pdf", ["b.pdf", "a/1.pdf"]),
        ("*.pdf", ["b.pdf"]),
        ("*/[12].*", ["a/1.pdf", "a/2.PDF"]),
        ("*/[!1].*", ["a/2.PDF"]),
        ("a/?.pdf", ["1.pdf"]),
        ("**", ["b.pdf", "a/1.pdf", "a/2.PDF", "a/scan.png"]),
    ],
)
def test_a_pattern_selects_matching_files(folder: Path, pattern: str, expected: list[str]) -> None:
    assert [path for path, _ in paths_and_types(select(folder / pattern))] == expected


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[1].pdf").write_bytes(PDF)
    assert paths_and_types(select(folder / "[1].pdf")) == [("[1].pdf", "pdf")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ("*.pdf",)}, ["b.pdf", "a/1.pdf"]),
        ({"include": ("a/*",)}, ["a/1.pdf", "a/2.PDF", "a/scan.png"]),
        ({"exclude": ("*.pdf", "a/scan.*")}, ["a/2.PDF"]),
        ({"include": ("a/**",), "exclude": ("1.*",)}, ["a/2.PDF", "a/scan.png"]),
    ],
)
def test_include_and_exclude_patterns_filter_files(folder: Path, options: dict[str, Any], expected: list[str]) -> None:
    result = select(folder, **options)
    assert [path for path, _ in paths_and_types(result)] == expected
    assert result.skipped[SKIPPED_BY_PATTERN] == 4 - len(expected)


def test_an_invalid_pattern_is_rejected(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\[z-a\]\.pdf"):
        select(folder, include=("[z-a].pdf",))


def test_the_same_file_is_selected_once(folder: Path) -> None:
    assert len(select(folder, folder / "a", folder / "b.pdf", folder / "a" / ".." / "b.pdf").documents) == 4


def test_links_to_files_are_followed_and_broken_links_skipped(folder: Path) -> None:
    (folder / "circle").symlink_to(folder, target_is_directory=True)
    (folder / "loop.pdf").symlink_to("loop.pdf")
    (folder / "gone.pdf").symlink_to("nowhere")
    (folder / "link.pdf").symlink_to("b.pdf")
    notices: list[str] = []
    result = select(folder, notices=notices)
    assert [path for path, _ in paths_and_types(result)][:2] == ["b.pdf", "link.pdf"]
    assert (len(result.documents), result.skipped[SKIPPED_BROKEN_LINK], len(notices)) == (5, 2, 2)
    assert paths_and_types(select(folder / "**" / "*.png")) == [("a/scan.png", "ocr")]
    with pytest.raises(InvalidInput, match=r"gone\.pdf"):
        select(folder / "gone.pdf")


def test_a_pipe_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.pdf")
    assert select(folder).skipped[SKIPPED_NOT_A_FILE] == 1
    with pytest.raises(InvalidInput, match=r"pipe\.pdf"):
        select(folder / "pipe.pdf")


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere"):
        select(tmp_path / "nowhere")
    assert select(tmp_path / "no*where").documents == []


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
        ("a.jpeg", PNG),  # Any supported image format is accepted.
    ],
)
def test_a_document_is_recognized_by_its_first_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    file = document(tmp_path / name, content)
    check_document(file)
    assert read_document(file) == content


@pytest.mark.parametrize(("name", "content"), [("a.pdf", b""), ("a.pdf", PNG), ("a.png", PDF), ("a.bmp", b"text")])
def test_a_document_whose_content_does_not_match_its_name_is_rejected(
    tmp_path: Path, name: str, content: bytes
) -> None:
    file = document(tmp_path / name, content)
    for read in (read_document, check_document):
        with pytest.raises(ContentMismatch):
            read(file)


def test_a_small_document_is_read_and_a_large_one_stays_a_path(tmp_path: Path) -> None:
    small = document(tmp_path / "small.pdf", PDF.ljust(IN_MEMORY_BYTES_MAX))
    large = document(tmp_path / "large.pdf", PDF.ljust(IN_MEMORY_BYTES_MAX + 1))
    assert (read_document(small), read_document(large)) == (PDF.ljust(IN_MEMORY_BYTES_MAX), large.path)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "memory.pdf").symlink_to("/proc/self/mem")  # Not even root can read it at offset 0.
    (unreadable,) = select(tmp_path).documents
    with pytest.raises(FileRefused, match="cannot be read"):
        read_document(unreadable)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("a.pdf", "a"), ("...pdf", "...pdf"), ("..pdf", "..pdf"), (".pdf", ".pdf"), ("a.b.pdf", "a.b")],
)
def test_the_output_folder_of_a_document_is_below_the_output(tmp_path: Path, name: str, folder: str) -> None:
    document = DocumentFile(path=tmp_path / name, relative_path=Path(name), type="pdf", size=1)
    assert output_folder(Path("out"), document) == Path("out") / folder


def test_control_characters_in_a_path_are_replaced() -> None:
    assert printable_path(Path("a\ndone  1  b\x1b[2J.pdf")) == "a\ufffddone  1  b\ufffd[2J.pdf"
