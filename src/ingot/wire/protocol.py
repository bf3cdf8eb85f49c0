"""The version of the worker protocol: the requests with which workers register, claim, send heartbeats and settle.

Raise `PROTOCOL` with a change that workers of the previous version cannot handle. Keep supporting that version for one
release, then raise `OLDEST_PROTOCOL`. New optional fields need no new version.
"""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
OLDEST_PROTOCOL: Final = 1
