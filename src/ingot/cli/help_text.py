"""Format the help of commands."""

from __future__ import annotations

import inspect

from rich.markup import escape


def unwrap_docstring(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that the terminal can wrap them."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def examples_epilog(*lines: str) -> str:
    """Format example command lines for the end of a command's help."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  $ {escape(line)}" for line in lines)])
