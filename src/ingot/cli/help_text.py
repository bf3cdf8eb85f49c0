"""What the help of a command says."""

from __future__ import annotations

import inspect

from rich.markup import escape


def unwrap_docstring(text: str) -> str:
    """A docstring without the ends of its lines: the terminal says how wide they are."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def examples_epilog(*lines: str) -> str:
    """Lines to type, as they stand below the help of a command."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  $ {escape(line)}" for line in lines)])
