"""Public names are importable, and a process imports only the libraries that it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import ingot
from tests.waiting import SECONDS_MAX


@pytest.mark.parametrize("package", ["ingot", "ingot.client", "ingot.worker"])
def test_all_public_names_exist(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == module.__all__
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ingot.nonsense


SERVER = "ingot.wiring.api_server, ingot.engines.sqlite"
DRIVERS = ("apsw", "asyncpg", "joserfc", "jinja2", "obstore", "uvicorn")


@pytest.mark.parametrize(
    ("modules", "imported"),
    [
        ("ingot.client.synchronous.client", ["httpx"]),
        ("ingot.cli.jobs", ["httpx"]),
        ("ingot.cli.events", ["httpx"]),
        ("ingot.cli.worker", ["httpx"]),
        ("ingot.cli.doctor", ["httpx"]),
        (SERVER, ["apsw", "uvicorn"]),
    ],
)
def test_a_module_imports_only_the_libraries_that_it_needs(modules: str, imported: list[str]) -> None:
    program = f"import sys, {modules}; print(*(name for name in {('httpx', *DRIVERS)} if name in sys.modules))"
    assert output_of(program).split() == imported


def test_a_server_does_not_import_the_client() -> None:
    assert output_of(f"import sys, {SERVER}; print(*(name for name in sys.modules if 'ingot.client' in name))") == "\n"


def test_the_template_imports_the_client_before_jobs_lose_access_to_it() -> None:
    program = "import sys, ingot.worker.isolation.template; print('ingot.client.synchronous.client' in sys.modules)"
    assert output_of(program) == "True\n"


@pytest.mark.parametrize("entry_module", ["client.errors", "worker.isolation.template", "wiring.worker_runner"])
def test_error_classes_of_all_rooms_are_found_by_code_in_every_process(entry_module: str) -> None:
    codes = ["forbidden", "unauthorized", "tenant_not_found", "user_not_found", "key_exists", "lease_lost", "gap"]
    names = "[type(errors.error_from_code(code, '', '')).__name__ for code in codes]"
    program = f"import ingot.{entry_module}; from ingot.client import errors; codes = {codes}; print(*{names})"
    expected = "Forbidden Unauthorized TenantNotFound UserNotFound KeyExists LeaseLost Gap"
    assert output_of(program).split() == expected.split()


def output_of(program: str) -> str:
    """The output of a program, run in a new process."""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    return completed.stdout
