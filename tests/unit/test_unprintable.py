"""Text from others, on a terminal and in the log: characters that overwrite or disguise our output are replaced."""

from __future__ import annotations

import pytest

from ingot.cli.output import printable
from ingot.kernel.log_text import TextRenderer

DISGUISES = [chr(code) for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
LINE_ENDS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("char", [*DISGUISES, *LINE_ENDS, "\x1b", "\x9b", "\x00", "\x7f"], ids=ascii)
def test_a_character_that_could_disguise_output_is_replaced(char: str) -> None:
    assert printable(f"a{char}b") == "a\ufffdb"
    line = TextRenderer(colors=False)(None, "", {"event": "x", "text": f"a{char}b", "level": "info", "timestamp": ""})
    assert str(line).endswith("a\ufffdb")


@pytest.mark.parametrize("text", ["ä\tö", "a\nb", "שלום", "日本", "👩\u200d🔧", "ab\u200cc"], ids=ascii)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert printable(text) == text
