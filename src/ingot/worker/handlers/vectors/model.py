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

VARIABLE: Final = "INGOT_EMBED_MODEL"
PLACES: Final = ("model.onnx", "onnx/model.onnx")
TOKENIZER: Final = "tokenizer.json"
TOKENS_UNLESS_TOLD: Final = 256
TOKENS_MAX: Final = 8192  # Of one piece, whatever the model says.
THREADS_MAX: Final = 4  # Several jobs run at once, and all that its threads use is the processor time of a job.
SENTENCE_OUTPUT: Final = "sentence_embedding"
WARNINGS_UP: Final = 3  # What onnxruntime logs: errors.

Vectors = NDArray[np.float32]
Pooling = Literal["mean", "cls"]


class _Facts(msgspec.Struct, frozen=True):
    """What the files beside a model say, of all that they say."""

    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = True


class Model:
    """A model, ready for texts."""

    def __init__(self, folder: Path) -> None:
        """Read it. Raises `NoRetry`, which says what is missing, and `PermissionError`."""
        self.name = folder.resolve().name
        self._pooling = _pooling_of(folder)
        self._tokenizer = _tokenizer_of(folder)
        self._session = _session_of(folder)
        self.tokens_max = _tokens_max_of(folder, self._tokenizer)
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        self._tokenizer.no_truncation()
        self._inputs = {one.name for one in self._session.get_inputs()}
        names = [one.name for one in self._session.get_outputs()]
        self._output = SENTENCE_OUTPUT if SENTENCE_OUTPUT in names else names[0]

    def piece_tokens(self, chunk_tokens: int | None, overlap_tokens: int) -> int:
        """How many tokens a piece has at most, with those that the model adds. Raises `NoRetry`."""
        found = chunk_tokens or self.tokens_max
        if found > self.tokens_max:
            raise NoRetry(f"chunk_tokens is {found}; the model reads {self.tokens_max} at most")
        if overlap_tokens > found // 2:
            raise NoRetry(f"overlap_tokens is {overlap_tokens}; it is at most half of chunk_tokens, which is {found}")
        return found

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Where the tokens of a text are, those that the model adds left out."""
        offsets: Sequence[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    def vectors(self, texts: Sequence[str], *, tokens_max: int, normalize: bool) -> Vectors:
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
        vectors = self._pooled(np.asarray(found, dtype=np.float32), given["attention_mask"])
        return _normalized(vectors) if normalize else vectors

    def _pooled(self, found: Vectors, mask: NDArray[np.int64]) -> Vectors:
        if found.ndim == 2:  # The model pools by itself.
            return found
        if self._pooling == "cls":
            return found[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((found * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9), dtype=np.float32)


def _normalized(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def _session_of(folder: Path) -> Any:
    path = next((folder / place for place in PLACES if (folder / place).is_file()), None)
    if path is None:
        raise NoRetry(
            f"the folder that {VARIABLE} names has no {' and no '.join(PLACES)}; export the model to ONNX there"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(len(os.sched_getaffinity(0)), THREADS_MAX)
    options.inter_op_num_threads = 1
    options.log_severity_level = WARNINGS_UP
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # Waiting is not to cost processor time.
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # It has an exception for every status, and no common one.
        told = str(error).replace(str(folder), "…")  # Who sends jobs is not told where it is.
        raise NoRetry(f"the model in the folder that {VARIABLE} names cannot be loaded: {told}") from error


def _tokenizer_of(folder: Path) -> Any:
    try:
        text = (folder / TOKENIZER).read_bytes()
    except FileNotFoundError:
        raise NoRetry(f"the folder that {VARIABLE} names has no {TOKENIZER}; put the one of the model there") from None
    try:
        return Tokenizer.from_buffer(text)
    except Exception as error:  # It raises plain ones.
        raise NoRetry(f"the {TOKENIZER} in the folder that {VARIABLE} names cannot be read: {error}") from error


def _tokens_max_of(folder: Path, tokenizer: Any) -> int:
    """How many tokens the model reads at once, with those that it adds."""
    told = (
        _facts(folder / "sentence_bert_config.json").max_seq_length,
        (tokenizer.truncation or {}).get("max_length"),
        _facts(folder / "config.json").max_position_embeddings,
    )
    return min(next((known for known in told if known), TOKENS_UNLESS_TOLD), TOKENS_MAX)


def _pooling_of(folder: Path) -> Pooling:
    facts = _facts(folder / "1_Pooling" / "config.json")
    if facts.pooling_mode_cls_token:
        return "cls"
    if not facts.pooling_mode_mean_tokens:
        raise NoRetry(f"the model that {VARIABLE} names makes one vector of many in a way that is not known here")
    return "mean"


def _facts(path: Path) -> _Facts:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Facts)
    except FileNotFoundError:
        return _Facts()
    except msgspec.MsgspecError as error:
        raise NoRetry(f"{path.name} in the folder that {VARIABLE} names cannot be read: {error}") from error
