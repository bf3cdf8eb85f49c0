"""The samples: made the same whenever they are, and converted to what a person would want."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from ingot.worker.handlers.documents.converting import ConvertedDocument, convert
from ingot.worker.job import NoRetry
from scripts.make_samples import FOLDER, SAMPLES, main
from tests.providers.programs import fonts, tesseract

pytestmark = [pytest.mark.tesseract, pytest.mark.fonts]

GOLDEN = FOLDER / "golden"
BYTES_MAX = 500_000
REFERENCE = re.compile(r"!\[[^\]]*\]\(([^)]*)\)")


def made_of(name: str, folder: Path) -> ConvertedDocument:
    if name == "scanned":
        tesseract()
    return convert(FOLDER / f"{name}.pdf", folder=folder)


def test_the_samples_are_what_the_script_makes(tmp_path: Path) -> None:
    fonts()
    main(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == {f"{name}.pdf" for name in SAMPLES}
    assert [name for name, data in made.items() if (FOLDER / name).read_bytes() != data] == []
    assert sum(map(len, made.values())) < BYTES_MAX


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.md")))
def test_a_sample_becomes_its_golden_markdown(name: str, tmp_path: Path) -> None:
    made = made_of(name, tmp_path)
    text = made.markdown.read_text(encoding="utf-8")
    assert text == (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    referenced = set(REFERENCE.findall(text))
    assert referenced == {path.name for path in made.pictures}
    with zipfile.ZipFile(made.archive) as archive:
        assert set(archive.namelist()) == referenced | {f"{name}.md"}


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_a_sample_that_cannot_be_read_says_why(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoRetry) as told:
        made_of(name, tmp_path)
    assert f"{told.value}\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_every_sample_has_its_golden_answer() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == SAMPLES.keys()
