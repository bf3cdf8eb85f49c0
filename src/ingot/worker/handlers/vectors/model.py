"""An embedding model in ONNX format, in a folder as sentence-transformers exports it."""

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
TOKENS_MAX: Final = 8192  # Per chunk, even if the model supports more.
THREADS_MAX: Final = 4  # Several jobs run at once, and all threads count against the processor time of a job.
SENTENCE_OUTPUT: Final = "sentence_embedding"
LOG_ERRORS_ONLY: Final = 3  # A log severity level of onnxruntime.

Vectors = NDArray[np.float32]
Pooling = Literal["mean", "cls"]


class _ModelConfig(msgspec.Struct, frozen=True):
    """The settings that are used from the configuration files of a model."""

    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = True


class EmbeddingModel:
    """A loaded model with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        """Load a model. Raises `NoRetry` if a file is missing or damaged, and `PermissionError`."""
        self.name = folder.resolve().name
        self._pooling = _read_pooling(folder)
        self._tokenizer = _load_tokenizer(folder)
        self._session = _load_session(folder)
        self.tokens_max = _read_tokens_max(folder, self._tokenizer)
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        self._tokenizer.no_truncation()
        self._inputs = {item.name for item in self._session.get_inputs()}
        names = [item.name for item in self._session.get_outputs()]
        self._output = SENTENCE_OUTPUT if SENTENCE_OUTPUT in names else names[0]

    def resolve_chunk_tokens(self, chunk_tokens: int | None, overlap_tokens: int) -> int:
        """Return the maximum tokens per chunk, including special tokens. Raises `NoRetry` for invalid options."""
        chunk_tokens_max = chunk_tokens or self.tokens_max
        if chunk_tokens_max > self.tokens_max:
            raise NoRetry(f"chunk_tokens must be at most {self.tokens_max} for this model, got {chunk_tokens_max}")
        if overlap_tokens > chunk_tokens_max // 2:
            raise NoRetry(
                f"overlap_tokens must be at most half of chunk_tokens ({chunk_tokens_max}), got {overlap_tokens}"
            )
        return chunk_tokens_max

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Return the character spans of the tokens of a text, without special tokens."""
        offsets: Sequence[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    def embed(self, texts: Sequence[str], *, tokens_max: int, normalize: bool) -> Vectors:
        """Return a vector for each text, computed as one batch. Texts are truncated to `tokens_max` tokens."""
        self._tokenizer.enable_truncation(tokens_max)
        self._tokenizer.enable_padding()
        encoded = self._tokenizer.encode_batch(list(texts))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        inputs = {
            "input_ids": np.array([item.ids for item in encoded], dtype=np.int64),
            "attention_mask": np.array([item.attention_mask for item in encoded], dtype=np.int64),
            "token_type_ids": np.array([item.type_ids for item in encoded], dtype=np.int64),
        }
        (output,) = self._session.run([self._output], {name: inputs[name] for name in self._inputs & inputs.keys()})
        vectors = self._pool(np.asarray(output, dtype=np.float32), inputs["attention_mask"])
        return _normalize(vectors) if normalize else vectors

    def _pool(self, output: Vectors, mask: NDArray[np.int64]) -> Vectors:
        if output.ndim == 2:  # The model pools by itself.
            return output
        if self._pooling == "cls":
            return output[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((output * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9), dtype=np.float32)


def _normalize(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def _load_session(folder: Path) -> Any:
    path = next((folder / name for name in MODEL_FILES if (folder / name).is_file()), None)
    if path is None:
        raise NoRetry(
            f"the folder in {MODEL_VARIABLE} contains neither {' nor '.join(MODEL_FILES)}; export the model to ONNX"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(len(os.sched_getaffinity(0)), THREADS_MAX)
    options.inter_op_num_threads = 1
    options.log_severity_level = LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # Waiting must not use processor time.
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # The exceptions of onnxruntime have no common base class.
        message = str(error).replace(str(folder), "…")  # Do not show the path to clients.
        raise NoRetry(f"the model in {MODEL_VARIABLE} cannot be loaded: {message}") from error


def _load_tokenizer(folder: Path) -> Any:
    try:
        text = (folder / TOKENIZER_FILE).read_bytes()
    except FileNotFoundError:
        raise NoRetry(
            f"the folder in {MODEL_VARIABLE} contains no {TOKENIZER_FILE}; copy it there from the model"
        ) from None
    try:
        return Tokenizer.from_buffer(text)
    except Exception as error:  # The library raises plain `Exception`.
        raise NoRetry(f"{TOKENIZER_FILE} of the model in {MODEL_VARIABLE} cannot be read: {error}") from error


def _read_tokens_max(folder: Path, tokenizer: Any) -> int:
    """Return the maximum number of tokens per text, including special tokens."""
    limits = (
        _read_config(folder / "sentence_bert_config.json").max_seq_length,
        (tokenizer.truncation or {}).get("max_length"),
        _read_config(folder / "config.json").max_position_embeddings,
    )
    return min(next((limit for limit in limits if limit), TOKENS_DEFAULT), TOKENS_MAX)


def _read_pooling(folder: Path) -> Pooling:
    config = _read_config(folder / "1_Pooling" / "config.json")
    if config.pooling_mode_cls_token:
        return "cls"
    if not config.pooling_mode_mean_tokens:
        raise NoRetry(f"the pooling mode of the model in {MODEL_VARIABLE} is not supported; use mean or CLS pooling")
    return "mean"


def _read_config(path: Path) -> _ModelConfig:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ModelConfig)
    except FileNotFoundError:
        return _ModelConfig()
    except msgspec.MsgspecError as error:
        raise NoRetry(f"{path.name} of the model in {MODEL_VARIABLE} cannot be read: {error}") from error
