"""Structs that threads share."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from ingot.kernel import msgspec_warmup

SHARED = """
import sys, threading
from types import ModuleType

import msgspec

from ingot.kernel.msgspec_warmup import prepare_structs

SOURCE = '''
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    a: int
    b: list[int] | None = None
    c: str | None = None
    d: dict[str, int] | None = None

class Outer(msgspec.Struct):
    x: Inner
    y: list[Inner]
'''
TEXT = b'{"x": {"a": 1}, "y": [{"a": 2}]}'
sys.setswitchinterval(1e-6)
for number in range(1500):
    module = sys.modules[f"shared_{number}"] = ModuleType(f"shared_{number}")
    exec(SOURCE, module.__dict__)
    prepare_structs()
    gate = threading.Barrier(4)

    def decode():
        gate.wait()
        msgspec.json.decode(TEXT, type=module.Outer)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_struct_that_was_not_whole_is_made_ready_later(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("half")
    monkeypatch.setitem(sys.modules, "half", half)
    exec("import msgspec\nclass Outer(msgspec.Struct):\n    x: 'Inner'\n", half.__dict__)
    msgspec_warmup.prepare_structs()
    assert msgspec_warmup.prepare_structs() == 0
    exec("class Inner(msgspec.Struct):\n    a: int\n", half.__dict__)
    assert msgspec_warmup.prepare_structs() == 2


@pytest.mark.long
def test_structs_that_are_ready_are_decoded_by_many_threads_at_once() -> None:
    """Those that are not end the process with a segmentation fault, with msgspec 0.22."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
