"""`job.outputs`: access by name, and iteration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ingot import Worker, WorkerJob, testing

worker = Worker()


@worker.handler("split")
def split(job: WorkerJob) -> None:
    for name in ("a.txt", "b.txt"):
        job.upload(name.upper(), name)


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    with testing.start(worker) as local_ingot:
        yield local_ingot


def test_iterating_over_outputs_yields_their_names(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("split", file={"in.txt": b"not an output"})
    assert list(job.outputs) == [], "a job has no outputs before it has succeeded"
    ingot.drain(raise_errors=True)
    assert sorted(job.outputs) == ["a.txt", "b.txt"]
    assert ("a.txt" in job.outputs, "in.txt" in job.outputs) == (True, False)
    assert {name: job.outputs[name].text() for name in job.outputs} == {"a.txt": "A.TXT", "b.txt": "B.TXT"}


def test_an_index_that_is_not_a_name_is_rejected(ingot: testing.LocalIngot) -> None:
    outputs: Any = ingot.client.submit("split").outputs
    with pytest.raises(TypeError, match="got 0"):
        outputs[0]


async def test_outputs_of_the_asynchronous_client_are_iterated_asynchronously() -> None:
    async with testing.start_async(worker) as ingot:
        job = await ingot.client.submit("split")
        await ingot.drain(raise_errors=True)
        assert sorted([name async for name in job.outputs]) == ["a.txt", "b.txt"]
        outputs: Any = job.outputs
        with pytest.raises(TypeError):
            list(outputs)
