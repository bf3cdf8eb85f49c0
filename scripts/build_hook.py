"""The build hook of hatchling: generates the synchronous client, and records the commit in wheels and sdists."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateFiles(BuildHookInterface[Any]):
    """Adds `ingot.client.synchronous` and the commit file before hatchling collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run scripts by their path, because the project is not on the path of modules during a build.

        An editable install gets no commit file: the commit of a checkout changes after it was installed.
        """
        runpy.run_path(str(Path(self.root, "scripts", "make_sync.py")), run_name="__main__")
        build = runpy.run_path(str(Path(self.root, "src", "ingot", "kernel", "build.py")))
        package = Path(self.root, "src", "ingot")
        commit_file = build["COMMIT_FILE"]
        commit = build["find_commit"](package)
        if version == "editable" or commit is None or (package / commit_file).exists():
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, commit_file)
        path.write_text(f"{commit}\n", encoding="ascii")
        in_archive = "src/ingot" if self.target_name == "sdist" else "ingot"
        build_data["force_include"][str(path)] = f"{in_archive}/{commit_file}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the commit file."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
