"""PDFs that people really made, through server, worker and command line: none crashes, and pages come out of all."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.pdf_corpus import corpus
from tests.system.programs import run_ingot, served, worker


@pytest.mark.corpus
@pytest.mark.long
def test_every_pdf_of_debians_manuals_is_converted(tmp_path: Path) -> None:
    files = sorted(corpus().rglob("*.pdf"))
    with served(tmp_path / "data") as (_, url):
        environment = {**os.environ, "INGOT_SERVER_URL": url, "INGOT_DATA": str(tmp_path / "data")}
        with worker("--handlers", "pdf", url=url, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL):
            began = time.monotonic()
            words = ("ingest", str(corpus()), "--output", str(tmp_path / "out"), "--json")
            done = run_ingot(*words, cwd=tmp_path, env=environment, seconds=280)
            seconds = time.monotonic() - began
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["path"]: one["error"] for one in told if one["status"] != "succeeded"} == {}
    assert len(told) == len(files) > 50
    pages = sum(markdown.read_text(encoding="utf-8").count("<!-- page ") for markdown in tmp_path.rglob("out/**/*.md"))
    assert pages > 1000
    print(f"{len(files)} files, {pages} pages, {pages / seconds:.0f} pages/s")
