"""Output of handlers as log lines."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ingot.worker.output_lines import LINE_CHARS_MAX, OutputLines


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        (["one\n", "two\nthree\n"], ["one", "two", "three"]),
        (["a", " ", "b", "\n"], ["a b"]),
        (["no end"], ["no end"]),
        (["\n", " \n", "x\n"], ["x"]),
        (["\r 10%", "\r 20%", "\r100%\n", "done\r\n"], ["100%", "done"]),
        (["x" * LINE_CHARS_MAX, "yz", "\nend"], ["x" * LINE_CHARS_MAX + "yz", "end"]),
    ],
)
def test_each_line_of_output_becomes_one_log_line(writes: list[str], lines: list[str]) -> None:
    with capture_logs() as entries:
        output = OutputLines("id", "print")
        for text in writes:
            output.write(text)
        output.flush()
    assert [entry["output"] for entry in entries] == lines
    assert {(entry["event"], entry["job_id"], entry["job_type"]) for entry in entries} == {
        ("job_output", "id", "print")
    }
