"""The build hook of hatchling: generates the synchronous client for wheels, sdists and editable installs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateClient(BuildHookInterface[Any]):
    """Generates `ingot.client.synchronous` before hatchling collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run the generator by its path, because the project is not on the path of modules during a build."""
        runpy.run_path(str(Path(self.root, "scripts", "make_sync.py")), run_name="__main__")
