"""The handler `embed`: converts texts to vectors with a model on the machine of the worker."""

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

TEXT_BYTES_MAX: Final = 8 * 1024 * 1024  # Takes about half of the timeout with a small model.
TEXTS_MAX: Final = 10_000
CHUNKS_MAX: Final = 50_000
CHUNK_TOKENS_MIN: Final = 16
BATCH_CHUNKS: Final = 32  # Chunks that the model processes at once.
DECIMALS: Final = 7  # The precision of a float32, for JSON.
TEXTS_STEM: Final = "texts"
BYTE_ORDER_MARK: Final = "\ufeff"


class EmbedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of an `embed` job. `texts` are embedded instead of an input file."""

    texts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=TEXTS_MAX)] | None = None
    chunk_tokens: Annotated[int, msgspec.Meta(ge=CHUNK_TOKENS_MIN)] | None = None
    overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    normalize: bool = True


class VectorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the JSON Lines output: a chunk of a text and its vector.

    `start` and `end` are character offsets. `item` is the index of the text if the payload has `texts`.
    """

    item: int | None = None
    start: int
    end: int
    text: str
    vector: list[float]


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an `embed` job. `lines` and `matrix` are the names of the JSON Lines and NumPy outputs."""

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
    """Embed the only input of the job, or the texts in its payload. Raises `NoRetry`."""
    options = read_options(job.payload, EmbedOptions)
    model = _load_model()
    tokens_max = model.resolve_chunk_tokens(options.chunk_tokens, options.overlap_tokens)
    source, texts = _read_texts(job, options)
    text_chunks = _split_texts(texts, model, tokens_max - model.special_tokens, options.overlap_tokens)
    vectors = _embed_chunks(job, model, texts, text_chunks, tokens_max=tokens_max, normalize=options.normalize)
    with TemporaryDirectory(dir=job.workdir()) as folder:
        lines, matrix = Path(folder) / "lines", Path(folder) / "matrix.npy"
        with lines.open("wb") as file:
            for line in _vector_records(texts, text_chunks, vectors, many=options.texts is not None):
                file.write(msgspec.json.encode(line) + b"\n")
        np.save(matrix, vectors, allow_pickle=False)
        lines_output = job.upload(lines, f"{output_stem(source)}.vectors.jsonl", "application/jsonl")
        matrix_output = job.upload(matrix, f"{output_stem(source)}.vectors.npy", "application/octet-stream")
    return EmbedResult(
        model=model.name,
        dimensions=vectors.shape[1],
        chunks=len(text_chunks),
        lines=lines_output.name,
        matrix=matrix_output.name,
    )


def check_configuration() -> None:
    """Raise `InvalidInput` if no model is configured. Called when the worker starts, so that no job has to fail."""
    folder = read_client_settings().embed_model
    if folder is None:
        raise InvalidInput("no model is set", hint=f"Set {MODEL_VARIABLE} to the folder of a model.")
    if not folder.is_dir():
        raise InvalidInput(f"{MODEL_VARIABLE} is not the path of a folder", hint="Set it to the folder of a model.")


def _load_model() -> EmbeddingModel:
    folder = read_client_settings().embed_model
    assert folder is not None
    try:
        return EmbeddingModel(folder)
    except PermissionError:
        raise NoRetry(
            f"the model folder in {MODEL_VARIABLE} is not readable for the user that handlers run as"
        ) from None


def _read_texts(job: WorkerJob, options: EmbedOptions) -> tuple[str, Sequence[str]]:
    """Return the name for the outputs and the texts. Raises `NoRetry`."""
    if options.texts is not None:
        if job.inputs:
            raise NoRetry("the job has both texts in its payload and an input file; use only one of them")
        if sum(map(len, options.texts)) > TEXT_BYTES_MAX:
            raise NoRetry(f"the texts have more than {TEXT_BYTES_MAX} characters; split them into several jobs")
        return TEXTS_STEM, options.texts
    name = only_input(job.inputs)
    path = job.download()
    if path.stat().st_size > TEXT_BYTES_MAX:
        raise NoRetry(f"the input has more than {TEXT_BYTES_MAX} bytes; split it into several jobs")
    try:
        return name, [path.read_bytes().decode().removeprefix(BYTE_ORDER_MARK)]
    except UnicodeDecodeError as error:
        raise NoRetry(f"the input is not UTF-8 text: invalid byte at offset {error.start}; convert it first") from None


def _split_texts(texts: Sequence[str], model: EmbeddingModel, tokens_max: int, overlap: int) -> list[TextChunk]:
    text_chunks = []
    for text_index, text in enumerate(texts):
        chunks = split_text(text, model.token_spans, tokens_max=tokens_max, overlap=overlap)
        if not chunks:
            subject = f"text {text_index}" if len(texts) > 1 else "the text"
            raise NoRetry(f"{subject} is empty")
        text_chunks += [TextChunk(text_index, chunk) for chunk in chunks]
        if len(text_chunks) > CHUNKS_MAX:
            raise NoRetry(f"there are more than {CHUNKS_MAX} chunks; split the text, or increase chunk_tokens")
    return text_chunks


def _embed_chunks(
    job: WorkerJob,
    model: EmbeddingModel,
    texts: Sequence[str],
    text_chunks: Sequence[TextChunk],
    *,
    tokens_max: int,
    normalize: bool,
) -> Vectors:
    """Return the vectors of the chunks in their order. Chunks of similar length are processed together."""
    order = sorted(range(len(text_chunks)), key=lambda number: text_chunks[number].chunk.tokens)
    all_vectors: Vectors | None = None
    for first in range(0, len(order), BATCH_CHUNKS):
        job.check()
        batch = order[first : first + BATCH_CHUNKS]
        batch_texts = [texts[text_chunks[number].text_index][slice(*text_chunks[number].chunk[:2])] for number in batch]
        vectors = model.embed(batch_texts, tokens_max=tokens_max, normalize=normalize)
        if all_vectors is None:
            all_vectors = np.empty((len(order), vectors.shape[1]), dtype=np.float32)
        all_vectors[batch] = vectors
        job.progress(100 * (first + len(batch)) / len(order), "embedding")
    assert all_vectors is not None
    return all_vectors


def _vector_records(
    texts: Sequence[str], text_chunks: Sequence[TextChunk], vectors: Vectors, *, many: bool
) -> Iterator[VectorRecord]:
    for text_chunk, vector in zip(text_chunks, vectors, strict=True):
        start, end, _ = text_chunk.chunk
        yield VectorRecord(
            item=text_chunk.text_index if many else None,
            start=start,
            end=end,
            text=texts[text_chunk.text_index][start:end],
            vector=np.round(vector.astype(np.float64), DECIMALS).tolist(),
        )
