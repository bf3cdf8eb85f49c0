"""A model that makes vectors of texts: a folder as models for sentence-transformers are exported in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ingot.worker.job import NoRetry

MODEL_VARIABLE: Final = "INGOT_EMBED_MODEL"
MODEL_FILES: Final = ("model.onnx", "onnx/model.onnx")
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENS_DEFAULT: Final = 256
TOKENS_MAX: Final = 8192  # Of one piece, whatever the model says.
THREADS_MAX: Final = 4  # Several jobs run at once, and all that its threads use is the processor time of a job.
SENTENCE_OUTPUT: Final = "sentence_embedding"
LOG_ERRORS_ONLY: Final = 3  # What onnxruntime logs: errors.

Vectors = NDArray[np.float32]
Pooling = Literal["mean", "cls"]


class _ModelConfig(msgspec.Struct, frozen=True):
    """What the files beside a model say, of all that they say."""

    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = True


class EmbeddingModel:
    """A model, ready for texts."""

    def __init__(self, folder: Path) -> None:
        """Read it. Raises `NoRetry`, which says what is missing, and `PermissionError`."""
        self.name = folder.resolve().name
        self._pooling = _read_pooling(folder)
        self._tokenizer = _load_tokenizer(folder)
        self._session = _load_session(folder)
        self.tokens_max = _read_tokens_max(folder, self._tokenizer)
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        self._tokenizer.no_truncation()
        self._inputs = {one.name for one in self._session.get_inputs()}
        names = [one.name for one in self._session.get_outputs()]
        self._output = SENTENCE_OUTPUT if SENTENCE_OUTPUT in names else names[0]

    def resolve_chunk_tokens(self, chunk_tokens: int | None, overlap_tokens: int) -> int:
        """How many tokens a piece has at most, with those that the model adds. Raises `NoRetry`."""
        found = chunk_tokens or self.tokens_max
        if found > self.tokens_max:
            raise NoRetry(f"chunk_tokens is {found}; the model reads {self.tokens_max} at most")
        if overlap_tokens > found // 2:
            raise NoRetry(f"overlap_tokens is {overlap_tokens}; it is at most half of chunk_tokens, which is {found}")
        return found

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Where the tokens of a text are, those that the model adds left out."""
        offsets: Sequence[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    def embed(self, texts: Sequence[str], *, tokens_max: int, normalize: bool) -> Vectors:
        """A vector for each text, in one go. What a text has beyond so many tokens is left out."""
        self._tokenizer.enable_truncation(tokens_max)
        self._tokenizer.enable_padding()
        encoded = self._tokenizer.encode_batch(list(texts))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        given = {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
            "attention_mask": np.array([one.attention_mask for one in encoded], dtype=np.int64),
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype=np.int64),
        }
        (found,) = self._session.run([self._output], {name: given[name] for name in self._inputs & given.keys()})
        vectors = self._pool(np.asarray(found, dtype=np.float32), given["attention_mask"])
        return _normalize(vectors) if normalize else vectors

    def _pool(self, found: Vectors, mask: NDArray[np.int64]) -> Vectors:
        if found.ndim == 2:  # The model pools by itself.
            return found
        if self._pooling == "cls":
            return found[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((found * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9), dtype=np.float32)


def _normalize(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def _load_session(folder: Path) -> Any:
    path = next((folder / place for place in MODEL_FILES if (folder / place).is_file()), None)
    if path is None:
        raise NoRetry(
            f"the folder in {MODEL_VARIABLE} has no {' and no '.join(MODEL_FILES)}; export the model to ONNX there"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(len(os.sched_getaffinity(0)), THREADS_MAX)
    options.inter_op_num_threads = 1
    options.log_severity_level = LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # Waiting is not to cost processor time.
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # It has an exception for every status, and no common one.
        told = str(error).replace(str(folder), "…")  # Who sends jobs is not told where it is.
        raise NoRetry(f"the model in the folder that {MODEL_VARIABLE} names cannot be loaded: {told}") from error


def _load_tokenizer(folder: Path) -> Any:
    try:
        text = (folder / TOKENIZER_FILE).read_bytes()
    except FileNotFoundError:
        raise NoRetry(
            f"the folder that {MODEL_VARIABLE} names has no {TOKENIZER_FILE}; put the one of the model there"
        ) from None
    try:
        return Tokenizer.from_buffer(text)
    except Exception as error:  # It raises plain ones.
        raise NoRetry(
            f"the {TOKENIZER_FILE} in the folder that {MODEL_VARIABLE} names cannot be read: {error}"
        ) from error


def _read_tokens_max(folder: Path, tokenizer: Any) -> int:
    """How many tokens the model reads at once, with those that it adds."""
    told = (
        _read_config(folder / "sentence_bert_config.json").max_seq_length,
        (tokenizer.truncation or {}).get("max_length"),
        _read_config(folder / "config.json").max_position_embeddings,
    )
    return min(next((known for known in told if known), TOKENS_DEFAULT), TOKENS_MAX)


def _read_pooling(folder: Path) -> Pooling:
    facts = _read_config(folder / "1_Pooling" / "config.json")
    if facts.pooling_mode_cls_token:
        return "cls"
    if not facts.pooling_mode_mean_tokens:
        raise NoRetry(f"the model that {MODEL_VARIABLE} names makes one vector of many in a way that is not known here")
    return "mean"


def _read_config(path: Path) -> _ModelConfig:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ModelConfig)
    except FileNotFoundError:
        return _ModelConfig()
    except msgspec.MsgspecError as error:
        raise NoRetry(f"{path.name} in the folder that {MODEL_VARIABLE} names cannot be read: {error}") from error
