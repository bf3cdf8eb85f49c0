"""The log spool: long logs on the worker's disk, within limits."""

from __future__ import annotations

import random
import re

import pytest

from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.worker.log_spool import LogSpool


def read_spool(log: LogSpool) -> str | None:
    opened = log.open()
    text = None if opened is None else opened.read().decode()
    log.close()
    return text


def test_a_log_that_fits_on_the_server_is_not_spooled() -> None:
    log = LogSpool()
    log.write("x" * LOG_TAIL_CHARS_MAX)
    assert (log.is_long, read_spool(log)) == (False, None)


def test_a_log_with_one_more_character_is_spooled_whole() -> None:
    log = LogSpool()
    log.write("ä" * LOG_TAIL_CHARS_MAX)
    log.write("\n")
    assert (log.is_long, read_spool(log)) == (True, "ä" * LOG_TAIL_CHARS_MAX + "\n")


def test_a_log_within_the_limit_is_complete() -> None:
    log, text = LogSpool(head=50_000, tail=50_000), "0123456789" * 10_000
    for start in range(0, len(text), 777):
        log.write(text[start : start + 777])
    assert read_spool(log) == text


@pytest.mark.parametrize("seed", range(20))
def test_the_middle_of_a_longer_log_is_omitted_and_marked(seed: int) -> None:
    rng = random.Random(seed)
    log, parts = LogSpool(head=50_000, tail=40_000), []
    for number in range(rng.randrange(200, 4_000)):
        parts.append(f"{number} " + rng.choice("aäß€🙂") * rng.randrange(90) + "\n")
        log.write(parts[-1])
    if rng.random() < 0.5:
        parts.append("€" * rng.randrange(100_000))  # Longer than the tail that is kept.
        log.write(parts[-1])
    whole = "".join(parts)
    spooled = read_spool(log)
    if len(whole) <= LOG_TAIL_CHARS_MAX:
        assert spooled is None
        return
    assert spooled is not None
    if len(whole.encode()) <= 90_000:
        assert spooled == whole
        return
    head, left_out, tail = re.split(r"\n\[(\d+) bytes omitted\]\n", spooled)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head.encode()) + int(left_out) + len(tail.encode()) == len(whole.encode())
    assert (len(head.encode()) >= 50_000 - 4, len(tail.encode()) >= 40_000 - 3) == (True, True)


def test_a_full_disk_loses_only_the_spooled_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    log = LogSpool()
    for _ in range(3):
        log.write("x" * LOG_TAIL_CHARS_MAX)
    assert (log.is_long, read_spool(log)) == (True, None)
