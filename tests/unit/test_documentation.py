"""Documentation names code, files and headings that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = (ROOT / "src" / "ingot", ROOT / "src", ROOT)  # Paths in a page are relative to one of these.
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
CODE_PAGES = sorted(
    [*(DOCS / "explanation").glob("*.md"), *(DOCS / "decisions").glob("*.md"), DOCS / "reference" / "glossary.md"]
)

CODE_NAME = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sql))(?::(\w+(?:\.\w+)*))?`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    """Return the path of a page, as the name of a test case."""
    return str(page.relative_to(ROOT))


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Return the classes, functions, methods and module-level names of a Python file, methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef():
                names.add(node.name)
                names.update(
                    f"{node.name}.{member.name}"
                    for member in node.body
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign():
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return frozenset(names)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = FENCED_BLOCK.sub("", page.read_text(encoding="utf-8"))
    return frozenset(
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
        for heading in HEADING.findall(text)
    )


@pytest.mark.parametrize("page", CODE_PAGES, ids=page_id)
def test_code_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for path, name in CODE_NAME.findall(page.read_text(encoding="utf-8")):
        file = next((source / path for source in SOURCES if (source / path).is_file()), None)
        if file is None or (name and name not in defined_names(file)):
            missing.append(f"{path}:{name}" if name else path)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_to_other_pages_are_valid(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_lists_every_page() -> None:
    links = LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links}
    missing = [page_id(page) for page in sorted(DOCS.glob("*/*.md")) if page.resolve() not in listed]
    assert missing == []
