"""What `import ingot` offers, and what it does not read from disk for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import ingot
from tests.waiting import SECONDS_MAX


@pytest.mark.parametrize("package", ["ingot", "ingot.client", "ingot.worker"])
def test_all_that_is_offered_is_there(package: str) -> None:
    door = import_module(package)
    assert sorted(door.__all__) == door.__all__
    assert set(door.__all__) <= set(dir(door))
    for name in door.__all__:
        assert getattr(door, name) is not None


def test_what_is_not_offered_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ingot.nonsense


SERVER = "ingot.wiring.api_server, ingot.engines.sqlite"
DRIVERS = ("apsw", "asyncpg", "joserfc", "jinja2", "obstore", "uvicorn")


@pytest.mark.parametrize(
    ("modules", "read"),
    [
        ("ingot.client.synchronous.client", ["httpx"]),
        ("ingot.cli.jobs", ["httpx"]),
        ("ingot.cli.events", ["httpx"]),
        ("ingot.cli.worker", ["httpx"]),
        ("ingot.cli.doctor", ["httpx"]),
        (SERVER, ["apsw", "uvicorn"]),
    ],
)
def test_who_needs_one_part_does_not_wait_for_the_others(modules: str, read: list[str]) -> None:
    asked = f"import sys, {modules}; print(*(name for name in {('httpx', *DRIVERS)} if name in sys.modules))"
    assert answer(asked).split() == read


def test_a_server_does_not_read_the_client() -> None:
    assert answer(f"import sys, {SERVER}; print(*(name for name in sys.modules if 'ingot.client' in name))") == "\n"


def test_the_client_is_there_before_a_job_gives_up_the_right_to_read_it() -> None:
    asked = "import sys, ingot.worker.isolation.template; print('ingot.client.synchronous.client' in sys.modules)"
    assert answer(asked) == "True\n"


@pytest.mark.parametrize("module", ["client.errors", "worker.isolation.template", "wiring.worker_runner"])
def test_the_errors_of_all_rooms_are_known_by_their_codes_whatever_else_is_read(module: str) -> None:
    codes = ["forbidden", "unauthorized", "tenant_not_found", "user_not_found", "key_exists", "lease_lost", "gap"]
    made = "[type(errors.error_from_code(code, '', '')).__name__ for code in codes]"
    asked = f"import ingot.{module}; from ingot.client import errors; codes = {codes}; print(*{made})"
    known = "Forbidden Unauthorized TenantNotFound UserNotFound KeyExists LeaseLost Gap"
    assert answer(asked).split() == known.split()


def answer(program: str) -> str:
    """What it writes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    return done.stdout
