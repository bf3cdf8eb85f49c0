"""The limit of open files of this process. Sockets count as open files."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress


def raise_open_files_limit() -> int:
    """Raise the limit of open files to the hard limit, and return the limit that now applies."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not accept.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        soft_limit = hard_limit
    return sys.maxsize if soft_limit == resource.RLIM_INFINITY else soft_limit
