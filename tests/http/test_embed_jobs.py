"""Jobs of the type `embed`, from the upload to the vectors, with a real server, model and isolated processes."""

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
def running_ingot(model: Path) -> Iterator[testing.LocalIngot]:
    """A server, and a worker with this model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_EMBED_MODEL", str(model))
        worker = Worker()
        worker.include("embed", concurrency=2)
        with testing.start(worker) as local_ingot:
            yield local_ingot


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    with running_ingot(model_folder()) as local_ingot:
        yield local_ingot


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.model
def test_a_text_file_becomes_one_vector_for_each_paragraph(ingot: testing.LocalIngot) -> None:
    text = "\n\n".join(PARAGRAPHS) + "\n"
    job = ingot.client.submit("embed", {"chunk_tokens": 32}, file={"notes.md": text.encode()})
    texts_job = ingot.client.submit("embed", {"texts": ["Why does bread rise?", PARAGRAPHS[1]]})
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
    text_lines = lines_of(texts_job.refresh().outputs["texts.vectors.jsonl"].bytes())
    assert [(line["item"], line["start"], line["end"]) for line in text_lines] == [
        (0, 0, 20),
        (1, 0, len(PARAGRAPHS[1])),
    ]
    question, same = (np.array(line["vector"]) for line in text_lines)
    assert (matrix @ question).argmax() == 0, "the nearest vector is that of the answer"
    assert np.allclose(same, matrix[1], atol=1e-4), "equal texts have equal vectors"


@pytest.mark.model
def test_a_job_with_text_that_cannot_be_embedded_is_dead_after_one_attempt(ingot: testing.LocalIngot) -> None:
    submit = ingot.client.submit
    jobs = {
        "the text is empty": submit("embed", file={"a.txt": b" \n"}),
        "invalid byte at offset 3": submit("embed", file={"a.txt": b"abc\xff"}),
        "text 1 is empty": submit("embed", {"texts": ["a", ""]}),
    }
    ingot.drain()
    for message, job in jobs.items():
        assert (job.refresh().status, job.data.attempts) == (JobStatus.DEAD, 1), message
        assert message in (job.error or "")


def test_including_embed_without_a_model_folder_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGOT_EMBED_MODEL", raising=False)
    with pytest.raises(InvalidInput, match="no model is set"):
        Worker().include("embed")
    monkeypatch.setenv("INGOT_EMBED_MODEL", "/nowhere/at/all")
    with pytest.raises(InvalidInput, match="INGOT_EMBED_MODEL is not the path of a folder"):
        Worker().include("embed")


@pytest.mark.skipif(os.geteuid() != 0, reason="handlers run as the user of the worker")
def test_an_unreadable_model_fails_the_job_without_showing_its_path(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running_ingot(tmp_path) as ingot:
        job = ingot.client.submit("embed", {"texts": ["a"]})
        ingot.drain()
        assert job.refresh().status is JobStatus.DEAD
        assert "not readable for the user that handlers run as" in (job.error or "")
        assert str(tmp_path) not in (job.error or ""), "the error must not show paths of the worker"
