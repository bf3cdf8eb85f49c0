"""Rules for imports between test modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVERS = (  # Modules and packages that start a server, a database or a process of Ingot.
    "tests.browser",
    "tests.budgets",
    "tests.conformance",
    "tests.worker_roles",
    "tests.engines",
    "tests.factories",
    "tests.faults",
    "tests.http",
    "tests.objects",
    "tests.outbound",
    "tests.postgres",
    "tests.s3",
    "tests.s3_proxy",
    "tests.app_database",
    "tests.system",
    "tests.two_tenant_database",
)
INSTALLERS = {"tests.providers.programs"}  # It installs programs with a function of tests.postgres, and starts nothing.


def _imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports anywhere, including names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _test_modules(root: Path) -> dict[str, set[str]]:
    """The modules below `tests`, each with the test modules and helpers that it imports."""
    modules = {}
    for path in sorted((root / "tests").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = set(_imports(ast.parse(path.read_text(encoding="utf-8"))))
    return {name: imported & modules.keys() for name, imported in modules.items()}


def _is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith("test_")


def _imports_of_tests(modules: dict[str, set[str]]) -> dict[str, list[str]]:
    """The modules that import test modules, with these."""
    return {name: tests for name, imported in modules.items() if (tests := sorted(filter(_is_test, imported)))}


def _servers_below(modules: dict[str, set[str]], folder: str) -> dict[str, list[str]]:
    """The modules in a folder that import modules of `SERVERS`, directly or indirectly, with these."""
    importers = {}
    for name in modules:
        if name.startswith(f"{folder}."):
            reached, ahead = set[str](), [name]
            while ahead:
                new = modules[ahead.pop()] - reached - INSTALLERS
                reached |= new
                ahead += new
            servers = [each for each in reached if any(f"{each}.".startswith(f"{server}.") for server in SERVERS)]
            if servers:
                importers[name] = sorted(servers)
    return importers


def test_no_module_imports_a_test_module() -> None:
    importers = _imports_of_tests(_test_modules(ROOT))
    assert importers == {}, "Move what these import to a module whose name does not begin with test_."


def test_a_unit_test_imports_nothing_that_starts_a_server() -> None:
    modules = _test_modules(ROOT)
    assert "tests.unit.test_layout" in modules
    importers = _servers_below(modules, "tests.unit")
    assert importers == {}, "A unit test needs no server and no database: move these to another folder of tests."


@pytest.mark.parametrize(
    "line",
    [
        "import tests.http.test_other",
        "from tests.http import test_other",
        "from tests.http.test_other import helper",
        "def f() -> None:\n    from tests.http.test_other import helper",
    ],
)
def test_every_form_of_importing_a_test_module_is_found(tmp_path: Path, line: str) -> None:
    _write(tmp_path, {"tests/http/test_other.py": "helper = 1", "tests/http/test_one.py": line})
    assert _imports_of_tests(_test_modules(tmp_path)) == {"tests.http.test_one": ["tests.http.test_other"]}


def test_a_server_that_a_helper_imports_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "tests/postgres/__init__.py": "from tests.postgres.server import start",
            "tests/postgres/server.py": "def start() -> None: ...",
            "tests/bench.py": "from tests.postgres.server import start",
            "tests/unit/test_one.py": "from tests.bench import start",
            "tests/unit/test_other.py": "from tests import postgres_names",
            "tests/postgres_names.py": "",
        },
    )
    assert _servers_below(_test_modules(tmp_path), "tests.unit") == {"tests.unit.test_one": ["tests.postgres.server"]}


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
