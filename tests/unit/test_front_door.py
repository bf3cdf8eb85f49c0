"""What `import ingot` offers, and what it does not read from disk for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ingot


def test_all_that_is_offered_is_there() -> None:
    assert sorted(ingot.__all__) == ingot.__all__
    for name in ingot.__all__:
        assert getattr(ingot, name) is not None
        assert name in dir(ingot)


def test_what_is_not_offered_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ingot.nonsense


SERVER = "ingot.wiring.serving, ingot.engines.sqlite"
DRIVERS = ("apsw", "asyncpg", "joserfc", "jinja2", "obstore", "uvicorn")


@pytest.mark.parametrize(
    ("modules", "read"),
    [
        ("ingot.client.synchronous.client", ["httpx"]),
        ("ingot.cli.jobs", ["httpx"]),
        ("ingot.cli.events", ["httpx"]),
        ("ingot.cli.worker", ["httpx"]),
        (SERVER, ["apsw", "uvicorn"]),
    ],
)
def test_who_needs_one_part_does_not_wait_for_the_others(modules: str, read: list[str]) -> None:
    asked = f"import sys, {modules}; print(*(name for name in {('httpx', *DRIVERS)} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=18, check=True)
    assert done.stdout.split() == read


def test_a_server_does_not_read_the_client() -> None:
    asked = f"import sys, {SERVER}; print(*(name for name in sys.modules if name.startswith('ingot.client')))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=18, check=True)
    assert done.stdout == "\n"
