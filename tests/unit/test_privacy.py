"""Tests use public names, and replace only constants of our code. CONTRIBUTING lists the exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
OURS: Final = ("ingot", "tests")
OWN: Final = frozenset({"self", "cls", "super()"})
# Functions of the standard library that end a process without cleanup.
STANDARD_LIBRARY: Final = frozenset({"atexit._run_exitfuncs", "os._exit"})
# Processes that die at a named step wrap that step.
KILLED: Final = frozenset({"tests/faults/blob_server_process.py", "tests/faults/kill_points.py"})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def is_constant(name: str) -> bool:
    """Whether this is the name of a constant, which is in capitals."""
    return name == name.upper() and not is_private(name)


class Inspector:
    """Finds violations of the rules in a test file."""

    def __init__(self, source: str) -> None:
        self._nodes = list(ast.walk(ast.parse(source)))
        self._foreign = set(self._names_of_others())

    def _names_of_others(self) -> Iterator[str]:
        """The names that the file imports from the standard library and from other packages."""
        for node in self._nodes:
            if isinstance(node, ast.Import):
                yield from (each.asname or each.name.partition(".")[0] for each in node.names if not is_ours(each.name))
            elif isinstance(node, ast.ImportFrom) and not is_ours(node.module or ""):
                yield from (each.asname or each.name for each in node.names)

    def violations(self) -> Iterator[tuple[int, str]]:
        """The line and the description of each violation."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield from self._reads(node)
            elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
                yield from ((node.lineno, f"imports {each.name}") for each in node.names if is_private(each.name))
            elif isinstance(node, ast.Call):
                yield from self._replaces(node)

    def _reads(self, node: ast.Attribute) -> Iterator[tuple[int, str]]:
        if is_private(node.attr) and ast.unparse(node.value) not in OWN:
            whole = ast.unparse(node)
            if whole not in STANDARD_LIBRARY:
                yield node.lineno, f"uses {whole}"

    def _replaces(self, call: ast.Call) -> Iterator[tuple[int, str]]:
        if not call.args or not _is_patch(call.func):
            return
        target, name = call.args[0], _text(call.args[1]) if len(call.args) > 1 else None
        if (path := _text(target)) is not None:
            owner, _, name = path.rpartition(".")
            foreign = not is_ours(owner)
        else:
            foreign = ast.unparse(target).partition(".")[0] in self._foreign
        if not foreign and (name is None or not is_constant(name)):
            yield call.lineno, f"replaces {ast.unparse(target)} {name or ''}".rstrip()


def _is_patch(function: ast.expr) -> bool:
    """Whether this is `setattr`, including that of a monkeypatch, or `patch` of `unittest.mock`."""
    match function:
        case ast.Name("setattr" | "patch") | ast.Attribute(ast.Name("mock"), "patch") | ast.Attribute(attr="setattr"):
            return True
        case ast.Attribute(owner, "object"):
            return _is_patch(owner)
    return False


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def violations_in(files: Iterable[Path]) -> list[str]:
    return [
        f"{name}:{line}: {text}"
        for name, file in ((str(file.relative_to(TESTS.parent)), file) for file in files)
        for line, text in Inspector(file.read_text(encoding="utf-8")).violations()
        if not (name in KILLED and text.startswith("replaces"))
    ]


def test_no_test_uses_private_names_or_replaces_our_functions() -> None:
    violations = violations_in(sorted(TESTS.rglob("*.py")))
    assert violations == [], 'See "Private names and patches" in CONTRIBUTING.md.'


@pytest.mark.parametrize(
    "source",
    [
        "store._memory",
        "bench.jobs._waiters.wake()",
        "self.store._memory",
        "store._memory.limit = 1",
        "from ingot.http.app import _unless_gone",
        "from tests.factories import _open",
        "from ingot.engines.sqlite import writer\nwriter._explain(error)",
        "monkeypatch.setattr(served.ingot.scrub, 'look_at', watched)",
        "with monkeypatch.context() as patched:\n    patched.setattr(store, 'finish_upload', die)",
        "from ingot.client import partial_file\nmonkeypatch.setattr(landing, 'lock', late)",
        "monkeypatch.setattr('ingot.identity.tenants.ZoneInfo', broken)",
        "monkeypatch.setattr(writer, '_COMMANDS_MAX', 0)",
        "monkeypatch.setattr(os_of_ours, name, noted)",
        "setattr(listener, name, fail)",
        "from unittest.mock import patch\npatch.object(room, 'report', quiet)",
        "from unittest.mock import patch\npatch('ingot.blobs.scrub.report')",
    ],
)
def test_a_violation_is_found(source: str) -> None:
    assert [line for line, _ in Inspector(source).violations()] == [source.count("\n") + 1]


@pytest.mark.parametrize(
    "source",
    [
        "self._memory",
        "cls._memory",
        "super()._run_once()",
        "store.__class__",
        "import os\nos._exit(1)",
        "from ingot.events import feeds\nmonkeypatch.setattr(feeds, 'READ_EVENTS_MAX', 15)",
        "monkeypatch.setattr('ingot.worker.heartbeat.WAIT_SECONDS', 60.0)",
        "import time\nmonkeypatch.setattr(time, 'time_ns', lambda: 0)",
        "import os\nmonkeypatch.setattr(os, name, noted)",
        "import asyncio\nmonkeypatch.setattr(asyncio.BaseEventLoop, 'call_soon_threadsafe', fail)",
        "monkeypatch.setattr('tempfile.tempdir', folder)",
        "from unittest.mock import patch\nwith patch('os.fsync', seen):\n    pass",
        "await client.patch(url, content=data)",
    ],
)
def test_allowed_code_is_not_a_violation(source: str) -> None:
    assert list(Inspector(source).violations()) == []
