"""Check that the text people read uses plain, standard English.

The check reads documentation, docstrings, comments, messages, SQL comments and templates. It fails on phrases from a
list, and on variable names that do not say what they contain, and prints a replacement for each. It finds habits, not
every bad sentence: a text that passes still has to be read.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ("*.md", "docs/**/*.md", "benchmarks/*.md")
CODE: Final = ("src/ingot/**/*.py", "examples/**/*.py", "scripts/**/*.py", "benchmarks/**/*.py")
OTHER: Final = ("src/ingot/**/*.sql", "src/ingot/**/*.html", "Makefile")
# Measured results are records, the client's copy is generated, one script contains the text of sample documents, and
# this file contains the phrases.
EXCLUDED: Final = (
    "benchmarks/RESULTS.md",
    "src/ingot/client/synchronous/",
    "scripts/make_samples.py",
    "scripts/check_prose.py",
)


class Phrase(NamedTuple):
    """A phrase to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _phrase(pattern: str, instead: str) -> Phrase:
    return Phrase(re.compile(pattern), instead)


_START: Final = r"(?:^|(?<=[.!?:;] )|(?<=\w[-–] ))"

PHRASES: Final = (
    _phrase(_START + r"What [^?]*?[.;:]( |$)", "Start with the subject: 'Data that …', 'The reason …'"),
    _phrase(_START + r"(Who|Whoever) [^?]*?[.;:,]( |$)", "Name the subject: 'Clients that …', 'A caller that …'"),
    _phrase(
        r"\b(by|of|for|from|to|with|than|as|and|or|that|what) who\b", "'a caller that', 'the client that', 'people who'"
    ),
    _phrase(
        r"\bwho(ever)? (may|asks|makes|sends|comes|takes|reads|calls|holds|waits|wants|writes) ", "'clients that …'"
    ),
    _phrase(
        r"\b[Tt]ell(s|ing)?\b|\b(is|are|was|were|be|been|being|it|not|and|has|have) told\b",
        "report, notify, return, show",
    ),
    _phrase(r"\b(go|goes|going|went|gone) on\b(?! (a |the |disk|PostgreSQL|SQLite))", "continue, resume"),
    _phrase(r"\bcom(e|es|ing) back\b|\bcame back\b", "return, recover, be available again"),
    _phrase(r"\bby and by\b", "gradually, later"),
    _phrase(r"\b(is|are|was|were|be) (given|taken) back\b", "released, returned"),
    _phrase(r"\bmore than once too\b", "can be repeated"),
    _phrase(r"\bbehind (the|its|their|our) backs?\b", "in the background, without notice"),
    _phrase(r"\bhears? (of|from|that|nothing|about)\b|\bheard (of|from|that)\b", "be notified, receive"),
    _phrase(r"\bheed(s|ed|ing)?\b", "handle, obey, check"),
    _phrase(r"(?<![Tt]here )\b(is|are|was|were) none\b", "'is not a …', 'does not exist'"),
    _phrase(
        r"\b(for|in|of|after|within|behind|with) so (long|many|much|few|little)\b(?! (as|that))",
        "name the number or the limit",
    ),
    _phrase(
        r"(?<![Tt]here )\b(is|are|was|were) (?:no|nothing) (?:id|name|token|type|number|key|picture|document|blob)\b",
        "is not a …",
    ),
    _phrase(r"\bthose that there are\b|\bthere (is|are) of\b", "existing"),
    _phrase(r"\b(a|the) (good|better|slow|bad) line\b", "connection, network"),
    _phrase(r"\b(doors?|desks?|shel(f|ves))\b", "lock, file client, upload session, storage"),
    _phrase(r"\b(let|lets|letting) (in|out|go)\b", "grant, revoke, release"),
    _phrase(r"\bby way of\b", "through, with"),
    _phrase(r"\b[Nn]obody('s)?\b(?! else)", "name the subject: 'no client', 'no process'"),
    _phrase(
        r"\b(it|they|that|one|which) (is|are|was) looked (at|for|after|into)\b|\bis looked whether\b",
        "check, inspect, search",
    ),
    _phrase(r"\belse?where\b(?=[.;,]? (is|are|was|has|have|does|made|it) )", "name the place: 'in another process'"),
    _phrase(r"\b(stands?|stood) (for itself|there|here|still|in its place)\b", "is, remains"),
    _phrase(r"\bof its own accord\b|\bby itself alone\b", "automatically"),
    _phrase(r"\b(much|little|all) that is\b", "name what it is"),
)

# Names that say that something happened instead of what the value is.
NAMES: Final = {
    "told": "name the value: report, notice, response",
    "said": "name the value: message, output, answer",
    "heard": "name the value: message, heartbeat",
    "desk": "file_client, session",
    "shelf": "batch",
    "door": "lock",
}


class Text(NamedTuple):
    """Lines of text from one place in a file."""

    line: int
    lines: list[str]


def main() -> int:
    """Print every phrase and name to replace; 1 if there are any."""
    found = 0
    for path in sorted(_files()):
        name = str(path.relative_to(ROOT))
        for line, text, instead in find_in_file(path):
            print(f"{name}:{line}: {text!r}: {instead}")
            found += 1
    if found:
        print(f"\n{found} to rewrite. CONTRIBUTING.md explains how we write.", file=sys.stderr)
    return 1 if found else 0


def _files() -> Iterator[Path]:
    for pattern in (*PAGES, *CODE, *OTHER):
        for path in ROOT.glob(pattern):
            name = str(path.relative_to(ROOT))
            if not any(name.startswith(excluded) for excluded in EXCLUDED):
                yield path


def find_in_file(path: Path) -> Iterator[tuple[int, str, str]]:
    """Each phrase or name to replace: its line, its text, and what to write instead."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(source)
        yield from _bad_names(tree)
        texts = [*_python_strings(tree), *_python_comments(source)]
    elif path.suffix == ".md":
        texts = list(_markdown(source))
    else:
        texts = list(_marked_lines(source, "--" if path.suffix == ".sql" else "#" if path.name == "Makefile" else ""))
    for text in texts:
        yield from _bad_phrases(text)


def _bad_phrases(text: Text) -> Iterator[tuple[int, str, str]]:
    joined = " ".join(line.strip() for line in text.lines)
    for phrase in PHRASES:
        for match in phrase.pattern.finditer(joined):
            yield text.line + _line_of(text.lines, match.start()), match.group()[:60], phrase.instead


def _line_of(lines: list[str], offset: int) -> int:
    end = 0
    for number, line in enumerate(lines):
        end += len(line.strip()) + 1
        if offset < end:
            return number
    return len(lines) - 1


def _bad_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
        name = node.arg if isinstance(node, ast.arg) else name
        if name in NAMES:
            yield getattr(node, "lineno", 0), name, NAMES[name]


def _python_strings(tree: ast.AST) -> Iterator[Text]:
    """Strings with several words: docstrings, messages and help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            for paragraph in _paragraphs(node.value.splitlines()):
                yield Text(node.lineno + paragraph.line, _without_code(paragraph.lines))


def _python_comments(source: str) -> Iterator[Text]:
    """Comments. Those on lines that follow each other are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa", "# fmt")):
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield Text(first, _without_code(block))
            block = []
        first = first if block else line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield Text(first, _without_code(block))


def _markdown(source: str) -> Iterator[Text]:
    fenced, lines = False, []
    for line in source.splitlines():
        fence = line.lstrip().startswith("```")
        fenced = fenced != fence
        lines.append(
            "" if fenced or fence or line.startswith("    ") else re.sub(r"^\s*([-*]|\d+\.|>|#+)\s+", "", line)
        )
    for paragraph in _paragraphs(lines):
        yield Text(paragraph.line + 1, _without_code(paragraph.lines))


def _marked_lines(source: str, mark: str) -> Iterator[Text]:
    lines = [
        line.partition(mark)[2].strip()
        if mark and mark in line
        else ""
        if mark
        else re.sub(r"<[^>]*>|\{[^}]*\}", " ", line)
        for line in source.splitlines()
    ]
    for paragraph in _paragraphs(lines):
        yield Text(paragraph.line + 1, _without_code(paragraph.lines))


def _paragraphs(lines: list[str]) -> Iterator[Text]:
    block: list[str] = []
    for number, line in enumerate([*lines, ""]):
        if line.strip():
            block.append(line)
        elif block:
            yield Text(number - len(block), block)
            block = []


def _without_code(lines: list[str]) -> list[str]:
    return [re.sub(r"`[^`]*`", "`…`", line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
