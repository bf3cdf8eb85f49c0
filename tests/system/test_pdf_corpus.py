"""Real PDFs, converted by server, worker and command line: none fails, and every page is in the output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pypdfium2
import pytest

from tests.campaigns import IS_WHOLE
from tests.pdf_corpus import corpus
from tests.system.programs import run_ingot, served, worker

# A PDF of each generator and each PDF version in the corpus, with and without images and an outline.
# `make soak` converts the whole corpus.
SAMPLE = (
    "asymptote-doc/CAD.pdf",  # pdfTeX, an image
    "asymptote-doc/TeXShopAndAsymptote.pdf",  # pdfTeX, two pages
    "asymptote-doc/asy-latex.pdf",  # pdfTeX by LaTeX with hyperref
    "asymptote-doc/pixel.pdf",  # ImageMagick by AFPL Ghostscript, PDF 1.2, only an image
    "bash-doc/bash.pdf",  # groff by GPL Ghostscript, PDF 1.7
    "debian-policy/fhs-3.0.pdf",  # Apache FOP
    "debian-policy/policy.pdf",  # xdvipdfmx, an outline, 193 pages
    "graphviz-doc/Agraph.pdf",  # pdfTeX of 2012
    "graphviz-doc/dottyguide.pdf",  # dvips by Acrobat Distiller of 1996, PDF 1.2, images
    "graphviz-doc/gvpr.1.pdf",  # groff by GPL Ghostscript, PDF 1.4
    "graphviz-doc/neatoguide.pdf",  # pdfTeX of 2003
    "graphviz-doc/smyrna.pdf",  # pdfTeX of 2007, images
    "libmpfr-doc/mpfr.pdf",  # pdfTeX by Texinfo, an outline
)


@pytest.mark.corpus
@pytest.mark.long
def test_pdfs_of_debians_manuals_are_converted(tmp_path: Path) -> None:
    folder = corpus() if IS_WHOLE else copy_sample(tmp_path / "sample")
    files = sorted(folder.rglob("*.pdf"))
    with served(tmp_path / "data") as (_, url):
        environment = {**os.environ, "INGOT_SERVER_URL": url, "INGOT_DATA": str(tmp_path / "data")}
        with worker("--handlers", "pdf", url=url, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL):
            started = time.monotonic()
            arguments = ("ingest", str(folder), "--output", str(tmp_path / "out"), "--json")
            done = run_ingot(*arguments, cwd=tmp_path, env=environment, seconds=280)
            seconds = time.monotonic() - started
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {result["path"]: result["error"] for result in results if result["status"] != "succeeded"} == {}
    assert len(results) == len(files)
    assert len(files) > 50 or not IS_WHOLE
    pages = sum(markdown.read_text(encoding="utf-8").count("<!-- page ") for markdown in tmp_path.rglob("out/**/*.md"))
    assert pages == sum(page_count(file) for file in files)
    print(f"{len(files)} files, {pages} pages, {pages / seconds:.0f} pages/s")


def copy_sample(folder: Path) -> Path:
    """Copy the sample of the corpus into a folder, each file below the name of its package."""
    for name in SAMPLE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(corpus() / name, folder / name)
    return folder


def page_count(file: Path) -> int:
    """The number of pages of a PDF."""
    with pypdfium2.PdfDocument(file) as document:
        return len(document)
