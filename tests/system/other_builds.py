"""Other builds of Ingot: copies of the package with changes, run as processes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import plant
from tests.processes import Process, started
from tests.system.programs import PYTHON_INGOT, CommandResult, wait_for_url

Replacement = tuple[str, str, str]  # A pattern of files, a regular expression, and the text that replaces it.


class OtherBuild:
    """A build in a folder of its own."""

    def __init__(self, source: Path, environment: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._environment = {**os.environ, **(environment or {}), "PYTHONPATH": str(source)}

    def run(self, *arguments: str) -> CommandResult:
        """Run a command until it ends."""
        done = subprocess.run(
            [*PYTHON_INGOT, *arguments],
            cwd=self._source, env=self._environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return CommandResult(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def served(self, folder: Path, *options: str) -> Iterator[tuple[Process, str]]:
        """Start a server, and yield it with its URL. It is killed at the end of the block."""
        command = [*PYTHON_INGOT, "serve", "--data", str(folder), *(options or ("--port", "0"))]
        with started(command, cwd=self._source, env=self._environment, stderr=subprocess.PIPE) as process:
            yield process, wait_for_url(process)


def changed_build(folder: Path, replacements: Sequence[Replacement], **environment: str) -> OtherBuild:
    """Copy the package into a folder, and replace text in it. Every replacement must change something."""
    plant(folder)
    for files, pattern, text in replacements:
        changes = 0
        for file in (folder / "ingot").glob(files):
            changed, count = re.subn(pattern, text, file.read_text(encoding="utf-8"))
            if count:
                file.write_text(changed, encoding="utf-8")
            changes += count
        assert changes, f"nothing in {files} matches {pattern}"
    return OtherBuild(folder, environment)
