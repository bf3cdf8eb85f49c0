"""The CPU time that other programs use during a measured run."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final

DISTURBED_SHARE: Final = 0.3  # Of one core. Above it, rates are lower by a third and more on two cores.
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
IDLE_FIELDS: Final = (3, 4)  # idle and iowait, of /proc/stat's user, nice, system, idle, iowait, irq, softirq, steal


class OtherLoad:
    """The share of one core that programs other than this process and its ended children have used since the start."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def share(self) -> float:
        busy, own = _busy_seconds() - self._busy, _own_seconds() - self._own
        return max(0.0, (busy - own) / self.seconds)


def _busy_seconds() -> float:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    return sum(int(ticks) for index, ticks in enumerate(fields) if index not in IDLE_FIELDS) / TICKS_PER_SECOND


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
