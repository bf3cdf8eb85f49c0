"""`on_one_server`: every case runs, and every failure names its case."""

from __future__ import annotations

import inspect

import pytest

from tests.http.one_server import on_one_server


async def test_every_case_runs_and_every_failure_is_named() -> None:
    ran = []

    @on_one_server(("body", "status"), [("a", 1), ("b", 2), ("c", 3)])
    async def check(served: str, body: str, status: int) -> None:
        ran.append((served, body))
        if status == 3:
            raise KeyError(body)
        assert status > 1, "too small"

    assert list(inspect.signature(check).parameters) == ["served"]
    with pytest.raises(AssertionError) as caught:
        await check(served="one")
    assert ran == [("one", "a"), ("one", "b"), ("one", "c")]
    assert "0: {'body': 'a', 'status': 1}\nAssertionError: too small" in str(caught.value)
    assert "2: {'body': 'c', 'status': 3}\nKeyError: 'c'" in str(caught.value)
    assert "'b'" not in str(caught.value)


async def test_two_decorators_run_every_combination() -> None:
    ran = []

    @on_one_server("size", [1, 2])
    @on_one_server("text", ["x", "y"])
    async def check(text: str, size: int) -> None:
        ran.append((size, text))

    await check()
    assert ran == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


async def test_a_test_without_cases_fails() -> None:
    @on_one_server("size", [])
    async def check(size: int) -> None: ...

    with pytest.raises(AssertionError, match="there is no case"):
        await check()
