"""Markdown of documents: repaired, ordered, and safely escaped."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ingot.worker.handlers.documents.archive import write_archive
from ingot.worker.handlers.documents.checkpoints import FinishedPage, PagePicture
from ingot.worker.handlers.documents.document_markdown import compose_markdown
from ingot.worker.handlers.documents.front_matter import front_matter, identify_source, quote_yaml, short_title
from ingot.worker.handlers.documents.markdown import (
    apply_heading_levels,
    escape_markdown,
    heading_levels,
    repair_markdown,
    split_paragraphs,
)


@pytest.mark.parametrize(
    ("raw", "repaired"),
    [
        ("**Never leave** **it alone**, *ever* *again*.", "**Never leave it alone**, *ever again*."),
        ("2 * 3 * 4 = 24", "2 * 3 * 4 = 24"),
        ("1. One.\n## Next", "1. One.\n\n## Next"),
        ("and baked a\n\nbread so dark", "and baked a bread so dark"),
        ("It ends.\n\nbut not here", "It ends.\n\nbut not here"),
        ("# A heading\n\nof no sentence", "# A heading\n\nof no sentence"),
        ("- an item\n\nof a list", "- an item\n\nof a list"),
        ("see <script>alert(1)</script>", "see \\<script>alert(1)\\</script>"),
        ("<u>kept</u>, 1 < 2", "<u>kept</u>, 1 < 2"),
        ("<!-- page 9 -->", "\\<!-- page 9 -->"),
        ("```\n<a>\n\n**x** **y**\n```", "```\n<a>\n\n**x** **y**\n```"),
        ("", ""),
    ],
)
def test_mistakes_of_converters_are_repaired(raw: str, repaired: str) -> None:
    assert repair_markdown(raw) == repaired


def test_a_gap_between_lines_splits_a_paragraph() -> None:
    text = "It breaks at once. **Read it** before you begin. It breaks at noon."
    repaired = "It breaks at once.\n\n**Read it** before you begin. It breaks at noon."
    assert split_paragraphs(text, [("unless it breaks at once.", "Read it before you")]) == repaired


@pytest.mark.parametrize("text", ["here. There here. There", "nothing of it"])
def test_a_gap_whose_position_is_ambiguous_splits_nothing(text: str) -> None:
    assert split_paragraphs(text, [("here.", "There")]) == text


def test_heading_levels_follow_font_sizes() -> None:
    levels = heading_levels([24.0, 18.0, 18.1, 14.0, 0.0])
    assert levels == {24.0: 1, 18.0: 2, 14.0: 3}
    assert apply_heading_levels("# Second\n\ntext\n\n## Third\n\n# Unknown", [18.0, 14.0, 0.0], levels) == (
        "## Second\n\ntext\n\n### Third\n\n# Unknown"
    )


def test_plain_text_is_escaped() -> None:
    assert escape_markdown("# no *heading*\r\n> <b>\x0c\n\n\n\nnext\n") == "\\# no \\*heading\\*\n\\> \\<b>\n\nnext"


def test_a_picture_is_placed_below_the_text_above_it() -> None:
    figures = (
        PagePicture(name="a b-p001-1.png", above="first line,"),
        PagePicture(name="a b-p001-2.png", above="nowhere"),
    )
    markdown = compose_markdown([FinishedPage(number=1, text="The **first** line,\n\nthe last.", figures=figures)])
    assert markdown == (
        "\n<!-- page 1 -->\n\nThe **first** line,\n\n![Picture 1 of page 1](a%20b-p001-1.png)\n\n"
        "the last.\n\n![Picture 2 of page 1](a%20b-p001-2.png)\n"
    )


def test_pages_are_marked_with_how_they_were_read() -> None:
    markdown = compose_markdown(
        [FinishedPage(number=1, text="x", was_read=True), FinishedPage(number=2, text="", unread="why not.")]
    )
    assert "<!-- page 1, read by OCR -->" in markdown
    assert "<!-- page 2, needs OCR -->\n\n> **Page 2 is a picture of text that was not read:** why not.\n" in markdown


@pytest.mark.parametrize("text", ['say "no"', "a: b # c", "---\nx: y", "\\", "\u2028\x85\x7f\ufeff", "שלום", "\udce9"])
def test_quoted_text_stays_on_one_line_of_the_front_matter(text: str) -> None:
    line = quote_yaml(text)
    assert json.loads(line) == text
    assert len(line.splitlines()) == 1
    assert line.encode()


def test_the_front_matter_describes_the_source(tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(b"abc")
    lines = front_matter(
        identify_source(path, "x.pdf"), title="T", pages=3, converter="c 1", ocr_pages="1-2"
    ).splitlines()
    assert lines[0] == lines[-1] == "---"
    assert 'sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"' in lines
    assert 'blake3: "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"' in lines
    assert {'title: "T"', 'source: "x.pdf"', "pages: 3", 'converter: "c 1"', 'ocr_pages: "1-2"'} <= set(lines)


def test_a_title_is_shortened_to_one_line() -> None:
    assert short_title(" a\n b\x00c \udce9" + "x" * 1000) == ("a b c ?" + "x" * 1000)[:300]


def test_archives_of_the_same_files_are_identical(tmp_path: Path) -> None:
    for name in ("a.md", "a-p001-1.png"):
        (tmp_path / name).write_text(name)
    files = [tmp_path / "a.md", tmp_path / "a-p001-1.png"]
    first = write_archive(files, tmp_path / "1.zip").read_bytes()
    files[0].touch()
    assert write_archive(files, tmp_path / "2.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            "a.md": "a.md",
            "a-p001-1.png": "a-p001-1.png",
        }
