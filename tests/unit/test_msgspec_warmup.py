"""Preparing structs before several threads decode them."""

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


def test_a_struct_with_an_undefined_type_is_prepared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    incomplete = ModuleType("half")
    monkeypatch.setitem(sys.modules, "half", incomplete)
    exec("import msgspec\nclass Outer(msgspec.Struct):\n    x: 'Inner'\n", incomplete.__dict__)
    msgspec_warmup.prepare_structs()
    assert msgspec_warmup.prepare_structs() == 0
    exec("class Inner(msgspec.Struct):\n    a: int\n", incomplete.__dict__)
    assert msgspec_warmup.prepare_structs() == 2


@pytest.mark.long
def test_prepared_structs_are_decoded_by_many_threads_at_once() -> None:
    """With msgspec 0.22, decoding unprepared structs in threads is a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
