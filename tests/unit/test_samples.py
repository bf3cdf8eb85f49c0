"""The sample PDFs: they are reproducible, and their Markdown matches the golden files."""

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


def convert_sample(name: str, folder: Path) -> ConvertedDocument:
    if name == "scanned":
        tesseract()
    return convert(FOLDER / f"{name}.pdf", folder=folder)


def test_the_script_reproduces_the_samples(tmp_path: Path) -> None:
    fonts()
    main(tmp_path)
    generated = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert generated.keys() == {f"{name}.pdf" for name in SAMPLES}
    assert [name for name, data in generated.items() if (FOLDER / name).read_bytes() != data] == []
    assert sum(map(len, generated.values())) < BYTES_MAX


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.md")))
def test_a_sample_becomes_its_golden_markdown(name: str, tmp_path: Path) -> None:
    converted = convert_sample(name, tmp_path)
    text = converted.markdown.read_text(encoding="utf-8")
    assert text == (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    referenced = set(REFERENCE.findall(text))
    assert referenced == {path.name for path in converted.pictures}
    with zipfile.ZipFile(converted.archive) as archive:
        assert set(archive.namelist()) == referenced | {f"{name}.md"}


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_an_unreadable_sample_fails_with_its_golden_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoRetry) as failure:
        convert_sample(name, tmp_path)
    assert f"{failure.value}\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_every_sample_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == SAMPLES.keys()
