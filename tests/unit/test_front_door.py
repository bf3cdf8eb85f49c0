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


@pytest.mark.parametrize("module", ["ingot.client", "ingot.cli.jobs", "ingot.cli.events"])
def test_a_client_starts_without_the_server(module: str) -> None:
    asked = f"import sys, {module}; print([name for name in sys.modules if name in ('asyncpg', 'apsw', 'uvicorn')])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=18, check=True)
    assert done.stdout == "[]\n"
