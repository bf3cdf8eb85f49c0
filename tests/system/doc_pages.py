"""The documentation pages whose examples tests run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[2]
PAGES: Final = HERE / "docs" / "how-to"
PYTHON: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
