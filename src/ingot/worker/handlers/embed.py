"""Texts as vectors, by a model on the machine of the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from ingot.kernel.errors import InvalidInput
from ingot.settings import read_client_settings
from ingot.worker.handlers.inputs import only_input, output_stem
from ingot.worker.handlers.options import read_options
from ingot.worker.handlers.vectors.chunks import Chunk, split_text
from ingot.worker.handlers.vectors.model import MODEL_VARIABLE, EmbeddingModel, Vectors
from ingot.worker.job import NoRetry, WorkerJob

TEXT_BYTES_MAX: Final = 8 * 1024 * 1024  # About half of the time that a job has, for a small model.
TEXTS_MAX: Final = 10_000
CHUNKS_MAX: Final = 50_000
CHUNK_TOKENS_MIN: Final = 16
BATCH_CHUNKS: Final = 32  # Pieces that the model reads at once.
DECIMALS: Final = 7  # In JSON: what a float32 tells.
TEXTS_STEM: Final = "texts"
BYTE_ORDER_MARK: Final = "\ufeff"


class EmbedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be embedded, unless that is the input, and how."""

    texts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=TEXTS_MAX)] | None = None
    chunk_tokens: Annotated[int, msgspec.Meta(ge=CHUNK_TOKENS_MIN)] | None = None
    overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    normalize: bool = True


class VectorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a text, from a character to before another, as a line of the output; of several texts, of which."""

    item: int | None = None
    start: int
    end: int
    text: str
    vector: list[float]


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was made: a line for each chunk in one file, and the same vectors as a matrix in the other."""

    model: str
    dimensions: int
    chunks: int
    lines: str
    matrix: str


class TextChunk(msgspec.Struct, frozen=True):
    """A chunk of one of the texts."""

    text_index: int
    chunk: Chunk


def handle(job: WorkerJob) -> Any:
    """Make vectors of the job's only input, or of the texts in its payload. Raises `NoRetry`."""
    options = read_options(job.payload, EmbedOptions)
    model = _load_model()
    tokens_max = model.resolve_chunk_tokens(options.chunk_tokens, options.overlap_tokens)
    source, texts = _read_texts(job, options)
    pieces = _split_texts(texts, model, tokens_max - model.special_tokens, options.overlap_tokens)
    vectors = _embed_chunks(job, model, texts, pieces, tokens_max=tokens_max, normalize=options.normalize)
    with TemporaryDirectory(dir=job.workdir()) as folder:
        lines, matrix = Path(folder) / "lines", Path(folder) / "matrix.npy"
        with lines.open("wb") as file:
            for line in _vector_records(texts, pieces, vectors, many=options.texts is not None):
                file.write(msgspec.json.encode(line) + b"\n")
        np.save(matrix, vectors, allow_pickle=False)
        stored = job.upload(lines, f"{output_stem(source)}.vectors.jsonl", "application/jsonl")
        as_matrix = job.upload(matrix, f"{output_stem(source)}.vectors.npy", "application/octet-stream")
    return EmbedResult(
        model=model.name,
        dimensions=vectors.shape[1],
        chunks=len(pieces),
        lines=stored.name,
        matrix=as_matrix.name,
    )


def expect_ready() -> None:
    """Raises `InvalidInput` unless a model is set: who starts the worker is told so, and not who sends texts."""
    folder = read_client_settings().embed_model
    if folder is None:
        raise InvalidInput("no model is set", hint=f"Set {MODEL_VARIABLE} to the folder of one.")
    if not folder.is_dir():
        raise InvalidInput(f"{MODEL_VARIABLE} names no folder", hint="Name the folder of a model.")


def _load_model() -> EmbeddingModel:
    folder = read_client_settings().embed_model
    assert folder is not None
    try:
        return EmbeddingModel(folder)
    except PermissionError:
        raise NoRetry(
            f"the folder that {MODEL_VARIABLE} names cannot be read by the user that handlers run as"
        ) from None


def _read_texts(job: WorkerJob, options: EmbedOptions) -> tuple[str, Sequence[str]]:
    """What the outputs are named after, and the texts. Raises `NoRetry`."""
    if options.texts is not None:
        if job.inputs:
            raise NoRetry("the job has texts in its payload and an input file too; leave one of them out")
        if sum(map(len, options.texts)) > TEXT_BYTES_MAX:
            raise NoRetry(f"the texts have more than {TEXT_BYTES_MAX} characters; make several jobs of them")
        return TEXTS_STEM, options.texts
    name = only_input(job.inputs)
    path = job.download()
    if path.stat().st_size > TEXT_BYTES_MAX:
        raise NoRetry(f"the input has more than {TEXT_BYTES_MAX} bytes; split it")
    try:
        return name, [path.read_bytes().decode().removeprefix(BYTE_ORDER_MARK)]
    except UnicodeDecodeError as error:
        raise NoRetry(f"the input is no text in UTF-8: its byte {error.start} cannot be read; convert it") from None


def _split_texts(texts: Sequence[str], model: EmbeddingModel, tokens_max: int, overlap: int) -> list[TextChunk]:
    found = []
    for item, text in enumerate(texts):
        chunks = split_text(text, model.token_spans, tokens_max=tokens_max, overlap=overlap)
        if not chunks:
            which = f"text {item}" if len(texts) > 1 else "the text"
            raise NoRetry(f"{which} is empty: there is nothing to embed")
        found += [TextChunk(item, chunk) for chunk in chunks]
        if len(found) > CHUNKS_MAX:
            raise NoRetry(f"there are more than {CHUNKS_MAX} chunks; split the text, or have longer chunks")
    return found


def _embed_chunks(
    job: WorkerJob,
    model: EmbeddingModel,
    texts: Sequence[str],
    pieces: Sequence[TextChunk],
    *,
    tokens_max: int,
    normalize: bool,
) -> Vectors:
    """The vectors of the pieces, in their order. Those of about one length are read together."""
    order = sorted(range(len(pieces)), key=lambda number: pieces[number].chunk.tokens)
    made: Vectors | None = None
    for first in range(0, len(order), BATCH_CHUNKS):
        job.check()
        batch = order[first : first + BATCH_CHUNKS]
        read = [texts[pieces[number].text_index][slice(*pieces[number].chunk[:2])] for number in batch]
        vectors = model.embed(read, tokens_max=tokens_max, normalize=normalize)
        made = np.empty((len(order), vectors.shape[1]), dtype=np.float32) if made is None else made
        made[batch] = vectors
        job.progress(100 * (first + len(batch)) / len(order), "embedding")
    assert made is not None
    return made


def _vector_records(
    texts: Sequence[str], pieces: Sequence[TextChunk], vectors: Vectors, *, many: bool
) -> Iterator[VectorRecord]:
    for piece, vector in zip(pieces, vectors, strict=True):
        start, end, _ = piece.chunk
        yield VectorRecord(
            item=piece.text_index if many else None,
            start=start,
            end=end,
            text=texts[piece.text_index][start:end],
            vector=np.round(vector.astype(np.float64), DECIMALS).tolist(),
        )
