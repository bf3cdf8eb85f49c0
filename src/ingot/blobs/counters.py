"""What is counted of blobs in this process, for the metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ingot.blobs.errors import QuotaExceeded
from ingot.kernel.errors import IngotError

DONE: Final = "done"
DISCONNECTED: Final = "left"  # Who asked went away.
FAILED: Final = "failed"


class BlobCounters:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.operations: Counter[tuple[str, str]] = Counter()  # By kind, and how it ended: the code of an error.
        self.bytes_in = 0
        self.bytes_out = 0
        self.uploads_begun = 0
        self.uploads_completed = 0
        self.signed_urls = 0  # Signed ones, to read at.
        self.quota_refusals = 0
        self.blobs_collected = 0
        self.bytes_collected = 0
        self.bytes_scrubbed = 0
        self.blobs_scrubbed = 0
        self.damage_found = 0
        self.orphans_deleted = 0

    @contextmanager
    def count_operation(self, kind: str) -> Iterator[None]:
        """Count one operation, and how it ended."""
        ended = FAILED
        try:
            yield
            ended = DONE
        except QuotaExceeded as error:
            self.quota_refusals += 1
            ended = error.code
            raise
        except IngotError as error:
            ended = error.code
            raise
        except asyncio.CancelledError:
            ended = DISCONNECTED
            raise
        finally:
            self.operations[kind, ended] += 1
