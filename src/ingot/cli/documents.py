"""Which files are documents, and for which type of job: by their names when looked for, by their bytes when read."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from ingot.cli.lfs import is_pointer, resolve
from ingot.cli.local import files_below, told
from ingot.kernel.errors import InvalidInput

IN_MEMORY_BYTES_MAX: Final = 1024 * 1024  # What is no larger is read once, and kept until it is sent.
HEAD_BYTES: Final = 1024  # As many as a Git LFS pointer has at most, too.
_PDF: Final = re.compile(rb"%PDF-")
_PICTURES: Final = re.compile(
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|II[*+]\0|MM\0[*+]|RIFF....WEBP|BM", re.DOTALL
)  # PNG, JPEG, TIFF of both byte orders and sizes, WebP, BMP.
PDFS: Final = frozenset({".pdf"})
PICTURES: Final = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp"})
TAKES: Final = {"pdf": PDFS, "ocr": PDFS | PICTURES, "image": PICTURES}  # Of a folder; other types take every file.
OTHER_KIND: Final = "of other kinds"
LEFT_OUT: Final = "left out by --include or --exclude"
NO_FILE: Final = "that are no files"
NOWHERE: Final = "links that lead nowhere"
PATTERN_HINT: Final = "Write it as in '*.pdf', 'reports/**/*.pdf' or 'scan-[0-9]?.png'."
GLOB: Final = re.compile(r"[*?\[]")


class Unlike(InvalidInput):
    """The bytes of a file are not what its name says."""

    code = "unlike_its_name"
    hint = "Look at the file; --type takes a file that is named for that type, whatever it holds."


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is to be worked on. `place` is its path from what was named on.

    With `checked`, its bytes have to be what its name says.
    """

    path: Path
    place: Path
    type: str
    size: int
    checked: bool = True


class Found(msgspec.Struct, frozen=True):
    """The documents, in order, and how many files were passed over for which reason."""

    documents: list[Document]
    skipped: Counter[str]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which files are wanted of those that are there."""

    type: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def type_of(self, path: Path, *, named: bool) -> str | None:
        """The type of the job for a file of this name, or `None` when it is not wanted."""
        suffix = path.suffix.lower()
        if self.type is not None:
            return self.type if named or suffix in TAKES.get(self.type, {suffix}) else None
        return "pdf" if suffix in PDFS else "ocr" if suffix in PICTURES else None

    def lets_in(self, place: Path) -> bool:
        """Whether the patterns let a file in: one without a / is for its name, others are for its path."""
        included = not self.include or any(_fits(one, place) for one in self.include)
        return included and not any(_fits(one, place) for one in self.exclude)


def find(paths: Sequence[Path], wanted: Wanted, say: Callable[[str], object]) -> Found:
    """The documents among files, folders and patterns. Raises `InvalidInput` for a path that is no such thing.

    What is not there any more, and folders that cannot be read, are told and passed over.
    """
    found = Found([], Counter())
    known: set[str] = set()
    for path, place, named in _all(paths, say):
        absolute = os.path.abspath(path)
        if absolute in known:
            continue
        known.add(absolute)
        type = wanted.type_of(path, named=named)
        if type is None and named:
            raise InvalidInput(
                f"{path} is no PDF and no picture by its name", hint="Say --type for what it is to be taken for."
            )
        if type is None:
            found.skipped[OTHER_KIND] += 1
        elif not wanted.lets_in(place):
            found.skipped[LEFT_OUT] += 1
        elif (size := _size(path, found.skipped, say)) is not None:
            checked = wanted.type is None or (wanted.type in TAKES and not named)
            document = Document(path=path, place=place, type=type, size=size, checked=checked)
            found.documents.append(document)
        elif named:
            raise InvalidInput(f"{path} is no file", hint="Store it in a file first, and name that.")
    return found


def read(document: Document) -> bytes | Path:
    """What is sent of a document: its bytes when they are few, or where they are.

    Raises `FileRefused`, `Unlike`, or `PointerUnresolved` for a Git LFS pointer whose file cannot be had.
    """
    with told(f"{document.path} cannot be read"):
        source, head = _opened(document.path)
        if is_pointer(head):
            source, head = _opened(resolve(document.path, head))
    _expect_right(document, head)
    return source


def look_at(document: Document) -> None:
    """Raises what `read` would, of a document that is not sent; a Git LFS pointer is not followed."""
    with told(f"{document.path} cannot be read"), document.path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_pointer(head):
        _expect_right(document, head)


def _expect_right(document: Document, head: bytes) -> None:
    if document.checked and not _looks_right(document.path.suffix.lower(), head[:HEAD_BYTES]):
        what = "is empty" if not head else f"does not begin as a {document.path.suffix.lower()} file"
        raise Unlike(f"{document.path} is not what its name says: it {what}")


def _opened(path: Path) -> tuple[bytes | Path, bytes]:
    """The bytes of a small file, or the path of one that is not; and how it begins."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > IN_MEMORY_BYTES_MAX:
            return path, file.read(HEAD_BYTES)
        content = file.readall()
    return content, content


def _looks_right(suffix: str, head: bytes) -> bool:
    return bool(_PDF.search(head) if suffix in PDFS else _PICTURES.match(head))


# -- looking for them -----------------------------------------------------------------------------------------


def _all(paths: Iterable[Path], say: Callable[[str], object]) -> Iterator[tuple[Path, Path, bool]]:
    """Every file below, its path from what was named on, and whether it was named itself."""

    def refused(error: OSError) -> None:
        say(f"{error.filename} cannot be read: {error.strerror}; it is left out.")

    for path in paths:
        if path.is_dir():
            for file in files_below(path, hidden=False, refused=refused):
                yield file, file.relative_to(path), False
        elif path.exists():
            yield path, Path(path.name), True
        elif path.is_symlink():
            raise InvalidInput(f"{path} is a link that leads nowhere", hint="Name the file itself.")
        elif GLOB.search(str(path)):
            yield from _fitting(path, refused)
        else:
            raise InvalidInput(f"{path} is not there", hint="Check the name; it is a file, a folder or a pattern.")


def _fitting(pattern: Path, refused: Callable[[OSError], object]) -> Iterator[tuple[Path, Path, bool]]:
    """The files that fit a pattern, below the folder before its first sign."""
    fixed = next(n for n, part in enumerate(pattern.parts) if GLOB.search(part))
    base, rest = Path(*pattern.parts[:fixed]), "/".join(pattern.parts[fixed:])
    deepest = None if "**" in pattern.parts else len(pattern.parts) - fixed - 1
    for file in files_below(base, hidden=False, deepest=deepest, refused=refused):
        place = file.relative_to(base)
        if _pattern(rest).fullmatch(place.as_posix()):
            yield file, place, False


def _fits(pattern: str, place: Path) -> bool:
    return _pattern(pattern).fullmatch(place.as_posix() if "/" in pattern else place.name) is not None


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    """A pattern of a shell: * and ? and […] stay in one folder, and ** is any number. Raises `InvalidInput`."""
    signs: list[str] = []
    for sign in re.findall(r"\*\*/|\*\*$|\*+|\?|\[!?\]?[^\]/]*\]|.", text.removeprefix("./"), re.DOTALL):
        if sign == "**/":
            signs.append("(?:[^/]+/)*")
        elif sign == "**":
            signs.append(".*")
        elif sign[0] == "*":
            signs.append("[^/]*")
        elif sign == "?":
            signs.append("[^/]")
        elif len(sign) > 1:
            inside = re.sub(r"([\\\[\]^&|~])", r"\\\1", sign[1:-1])
            signs.append(f"[^/{inside[1:]}]" if inside.startswith("!") else f"(?!/)[{inside}]")
        else:
            signs.append(re.escape(sign))
    try:
        return re.compile("".join(signs), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"the pattern {text[:64]!r} cannot be read: {error}", hint=PATTERN_HINT) from None


def _size(path: Path, skipped: Counter[str], say: Callable[[str], object]) -> int | None:
    """How large a file is; `None` for what is none, which is counted."""
    try:
        known = path.stat()
    except OSError as error:
        say(f"{path} leads nowhere: {error.strerror}; it is left out.")
        skipped[NOWHERE] += 1
        return None
    if not stat.S_ISREG(known.st_mode):
        skipped[NO_FILE] += 1
        return None
    return known.st_size
