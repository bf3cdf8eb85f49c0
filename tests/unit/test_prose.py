"""The prose check: the phrases and names that it finds, and the text that it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_prose import find_in_file

AVOIDED = [
    "What is remembered may lie before a lane's work.",
    "Who does not read does not see them leave.",
    "The server tells who may sign in.",
    "It is told by the one who asks.",
    "The upload goes on where it broke off.",
    "A server that was away comes back by and by.",
    "Nobody hears of it.",
    "It waits for so long.",
    "Send the request again over a better line.",
]
ACCEPTED = [
    "What does the worker do with a lost lease?",
    "The worker retries until the server is reachable.",
    "People who sign in have one session for each browser.",
    "The migration continues after a restart.",
    "Run `ingot tell` twice.",
]


def phrases_in(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    return [phrase for _, phrase, _ in find_in_file(path)]


@pytest.mark.parametrize("sentence", AVOIDED)
def test_a_phrase_to_avoid_is_found_in_every_kind_of_text(tmp_path: Path, sentence: str) -> None:
    texts = {
        "page.md": f"# A page\n\n- {sentence}\n",
        "docstring.py": f'def work():\n    """Do the work.\n\n    {sentence}\n    """\n',
        "comment.py": f"X = 1\n# {sentence}\nY = 2\n",
        "message.py": f"raise ValueError({sentence!r})\n",
        "statement.sql": f"-- {sentence}\nSELECT 1;\n",
        "page.html": f"<p>{sentence}</p>\n",
    }
    assert [name for name, text in texts.items() if not phrases_in(tmp_path / name, text)] == []


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_plain_english_and_code_are_accepted(tmp_path: Path, sentence: str) -> None:
    assert phrases_in(tmp_path / "page.md", f"{sentence}\n\n```\nWho asks is told.\n```\n") == []


def test_a_sentence_on_two_lines_is_found_on_its_first(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("First line.\n\nThe upload goes\non where it broke off.\n")
    assert [line for line, _, _ in find_in_file(path)] == [3]


def test_a_variable_that_does_not_say_what_it_contains_is_found(tmp_path: Path) -> None:
    assert phrases_in(tmp_path / "names.py", "told = read()\nfor said in told:\n    pass\n") == ["told", "said"]
