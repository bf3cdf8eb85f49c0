"""Logs that are kept whole on the worker's disk, as far as they are bounded."""

from __future__ import annotations

import random
import re

import pytest

from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.worker.log_spool import LogSpool


def kept(log: LogSpool) -> str | None:
    opened = log.open()
    text = None if opened is None else opened.read().decode()
    log.close()
    return text


def test_what_the_server_keeps_anyway_is_not_kept() -> None:
    log = LogSpool()
    log.write("x" * LOG_TAIL_CHARS_MAX)
    assert (log.is_long, kept(log)) == (False, None)


def test_one_character_more_is_kept_whole() -> None:
    log = LogSpool()
    log.write("ä" * LOG_TAIL_CHARS_MAX)
    log.write("\n")
    assert (log.is_long, kept(log)) == (True, "ä" * LOG_TAIL_CHARS_MAX + "\n")


def test_up_to_the_limit_nothing_is_left_out() -> None:
    log, text = LogSpool(head=50_000, tail=50_000), "0123456789" * 10_000
    for start in range(0, len(text), 777):
        log.write(text[start : start + 777])
    assert kept(log) == text


@pytest.mark.parametrize("seed", range(20))
def test_of_more_the_middle_is_left_out_and_that_is_said(seed: int) -> None:
    chance = random.Random(seed)
    log, parts = LogSpool(head=50_000, tail=40_000), []
    for number in range(chance.randrange(200, 4_000)):
        parts.append(f"{number} " + chance.choice("aäß€🙂") * chance.randrange(90) + "\n")
        log.write(parts[-1])
    if chance.random() < 0.5:
        parts.append("€" * chance.randrange(100_000))  # More at once than the end that is kept.
        log.write(parts[-1])
    whole = "".join(parts)
    found = kept(log)
    if len(whole) <= LOG_TAIL_CHARS_MAX:
        assert found is None
        return
    assert found is not None
    if len(whole.encode()) <= 90_000:
        assert found == whole
        return
    head, left_out, tail = re.split(r"\n\[(\d+) bytes omitted\]\n", found)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head.encode()) + int(left_out) + len(tail.encode()) == len(whole.encode())
    assert (len(head.encode()) >= 50_000 - 4, len(tail.encode()) >= 40_000 - 3) == (True, True)


def test_a_full_disk_costs_the_log_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    log = LogSpool()
    for _ in range(3):
        log.write("x" * LOG_TAIL_CHARS_MAX)
    assert (log.is_long, kept(log)) == (True, None)
