"""Every class name of the package is defined once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "ingot"
GENERATED = (
    SOURCE / "client" / "synchronous"
)  # Its classes have the names of the asynchronous ones, with another prefix.


def classes_defined_twice(folder: Path) -> dict[str, list[str]]:
    """The names that more than one class below a folder has, with the files that define them."""
    files = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        if GENERATED in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(path.relative_to(folder)))
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def test_no_class_name_is_defined_twice() -> None:
    assert classes_defined_twice(SOURCE) == {}


def test_the_check_finds_a_class_name_that_is_defined_twice(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Upload: ...\nclass Download: ...\n")
    (tmp_path / "two.py").write_text("def make():\n    class Upload: ...\n")
    assert classes_defined_twice(tmp_path) == {"Upload": ["one.py", "two.py"]}
