"""Counters of blob operations in this process, for the metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ingot.blobs.errors import QuotaExceeded
from ingot.kernel.errors import IngotError

DONE: Final = "done"
DISCONNECTED: Final = "left"  # The client disconnected before the operation ended.
FAILED: Final = "failed"


class BlobCounters:
    """Counts of operations, bytes and blobs since the process started."""

    def __init__(self) -> None:
        # By kind and outcome. The outcome of an error is its code.
        self.operations: Counter[tuple[str, str]] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.uploads_begun = 0
        self.uploads_completed = 0
        self.signed_urls = 0  # Only those to read a blob from.
        self.quota_refusals = 0
        self.blobs_collected = 0
        self.bytes_collected = 0
        self.bytes_scrubbed = 0
        self.blobs_scrubbed = 0
        self.damage_found = 0
        self.orphans_deleted = 0

    @contextmanager
    def count_operation(self, kind: str) -> Iterator[None]:
        """Count the operation that runs in the block, with its outcome."""
        outcome = FAILED
        try:
            yield
            outcome = DONE
        except QuotaExceeded as error:
            self.quota_refusals += 1
            outcome = error.code
            raise
        except IngotError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = DISCONNECTED
            raise
        finally:
            self.operations[kind, outcome] += 1
