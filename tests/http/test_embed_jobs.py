"""Jobs of the type `embed`, from the upload to the vectors: the real server, a real model, a process for each job."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import Worker, testing
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import InvalidInput
from tests.minilm import NAME, model_folder

PARAGRAPHS = [
    "Yeast eats the sugar of the flour and gives off gas, which lifts the dough.",
    "The ferry to the island leaves at seven, and comes back after dark.",
    "A lease ends when nobody renews it; then the job goes to another worker.",
]


@contextmanager
def working(model: Path) -> Iterator[testing.LocalIngot]:
    """A server, and a worker that has this model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_EMBED_MODEL", str(model))
        worker = Worker()
        worker.include("embed", concurrency=2)
        with testing.start(worker) as one:
            yield one


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    with working(model_folder()) as one:
        yield one


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.model
def test_a_text_becomes_vectors_of_its_paragraphs(ingot: testing.LocalIngot) -> None:
    text = "\n\n".join(PARAGRAPHS) + "\n"
    job = ingot.client.submit("embed", {"chunk_tokens": 32}, file={"notes.md": text.encode()})
    asked = ingot.client.submit("embed", {"texts": ["Why does bread rise?", PARAGRAPHS[1]]})
    ingot.drain(raise_errors=True)
    outputs = job.refresh().outputs
    assert job.result == {
        "model": NAME,
        "dimensions": 384,
        "chunks": 3,
        "lines": "notes.vectors.jsonl",
        "matrix": "notes.vectors.npy",
    }
    lines = lines_of(outputs["notes.vectors.jsonl"].bytes())
    assert [line["text"] for line in lines] == PARAGRAPHS
    assert [text[line["start"] : line["end"]] for line in lines] == PARAGRAPHS
    matrix = np.load(io.BytesIO(outputs["notes.vectors.npy"].bytes()), allow_pickle=False)
    assert (matrix.dtype, matrix.shape) == (np.float32, (3, 384))
    assert np.allclose([line["vector"] for line in lines], matrix, atol=1e-6)
    found = lines_of(asked.refresh().outputs["texts.vectors.jsonl"].bytes())
    assert [(line["item"], line["start"], line["end"]) for line in found] == [(0, 0, 20), (1, 0, len(PARAGRAPHS[1]))]
    question, same = (np.array(line["vector"]) for line in found)
    assert (matrix @ question).argmax() == 0, "the answer is nearest to its question"
    assert np.allclose(same, matrix[1], atol=1e-4), "equal texts have equal vectors"


@pytest.mark.model
def test_what_cannot_be_embedded_is_dead_at_once_and_says_why(ingot: testing.LocalIngot) -> None:
    submit = ingot.client.submit
    jobs = {
        "the text is empty": submit("embed", file={"a.txt": b" \n"}),
        "invalid byte at offset 3": submit("embed", file={"a.txt": b"abc\xff"}),
        "text 1 is empty": submit("embed", {"texts": ["a", ""]}),
    }
    ingot.drain()
    for said, job in jobs.items():
        assert (job.refresh().status, job.data.attempts) == (JobStatus.DEAD, 1), said
        assert said in (job.error or "")


def test_a_worker_without_a_model_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGOT_EMBED_MODEL", raising=False)
    with pytest.raises(InvalidInput, match="no model is set"):
        Worker().include("embed")
    monkeypatch.setenv("INGOT_EMBED_MODEL", "/nowhere/at/all")
    with pytest.raises(InvalidInput, match="INGOT_EMBED_MODEL is not the path of a folder"):
        Worker().include("embed")


@pytest.mark.skipif(os.geteuid() != 0, reason="handlers run as who runs the worker")
def test_a_model_that_handlers_may_not_read_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with working(tmp_path) as ingot:
        job = ingot.client.submit("embed", {"texts": ["a"]})
        ingot.drain()
        assert job.refresh().status is JobStatus.DEAD
        assert "not readable for the user that handlers run as" in (job.error or "")
        assert str(tmp_path) not in (job.error or ""), "who sends jobs is not told what the worker's machine looks like"
