"""A real embedding model: its vectors match published values, and damaged models are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ingot.worker import NoRetry
from ingot.worker.handlers.vectors.model import EmbeddingModel
from tests.minilm import NAME, model_folder

# Published similarities of all-MiniLM-L6-v2 between the first of these texts and each of them.
SIMILARITIES = {
    "That is a happy person": 1.0,
    "That is a happy dog": 0.6946,
    "That is a very happy person": 0.9429,
    "Today is a sunny day": 0.2569,
}
FAQ = {
    "How do I change my password?": "Open your profile, choose Security, and type the new secret twice.",
    "When does the shop open?": "Our doors are unlocked at nine in the morning, except on Sundays.",
    "Why does bread rise?": "Yeast eats the sugar of the flour and gives off gas, which lifts the dough.",
}
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> EmbeddingModel:
    return EmbeddingModel(model_folder())


def test_the_model_has_its_name_and_limits(model: EmbeddingModel) -> None:
    assert (model.name, model.tokens_max, model.special_tokens) == (NAME, 256, 2)


def test_chunk_sizes_are_limited_by_the_model(model: EmbeddingModel) -> None:
    assert [model.resolve_chunk_tokens(*arguments) for arguments in ((None, 128), (256, 0), (32, 16))] == [256, 256, 32]
    with pytest.raises(NoRetry, match="chunk_tokens must be at most 256 for this model, got 300"):
        model.resolve_chunk_tokens(300, 0)
    with pytest.raises(NoRetry, match=r"overlap_tokens must be at most half of chunk_tokens \(32\), got 17"):
        model.resolve_chunk_tokens(32, 17)


def test_a_text_longer_than_the_model_reads_is_truncated(model: EmbeddingModel) -> None:
    whole, cut = ("bread " * times for times in (1000, 254))
    long, short = (model.embed([text], tokens_max=256, normalize=True) for text in (whole, cut))
    assert np.allclose(long, short, atol=1e-5)


def test_vectors_have_the_published_similarities(model: EmbeddingModel) -> None:
    vectors = model.embed(list(SIMILARITIES), tokens_max=256, normalize=True)
    assert (vectors.dtype.name, vectors.shape) == ("float32", (4, 384))
    assert vectors @ vectors[0] == pytest.approx(list(SIMILARITIES.values()), abs=2e-4)


def test_a_question_is_nearest_to_its_answer(model: EmbeddingModel) -> None:
    questions, answers = (model.embed(list(texts), tokens_max=256, normalize=True) for texts in (FAQ, FAQ.values()))
    assert (questions @ answers.T).argmax(axis=1).tolist() == [0, 1, 2]


def test_vectors_do_not_depend_on_the_batch(model: EmbeddingModel) -> None:
    texts = ["one", "a good deal more than one word, and some more", *FAQ.values(), "one"]
    together = model.embed(texts, tokens_max=256, normalize=False)
    alone = np.concatenate([model.embed([text], tokens_max=256, normalize=False) for text in texts])
    assert np.allclose(together, alone, atol=1e-4)
    assert np.array_equal(together[0], together[-1])


def test_vectors_are_normalized_on_request(model: EmbeddingModel) -> None:
    plain, normalized = (model.embed(["bread"], tokens_max=256, normalize=normalize) for normalize in (False, True))
    assert np.linalg.norm(normalized) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(plain) != pytest.approx(1, abs=1e-2)
    assert np.allclose(plain / np.linalg.norm(plain), normalized, atol=1e-5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that a test can change."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in model_folder().iterdir():
        (copy / path.name).symlink_to(path)
    return copy


def test_the_onnx_file_may_be_in_a_subfolder(folder: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    assert EmbeddingModel(folder).embed(["bread"], tokens_max=256, normalize=True).shape == (1, 384)


def test_the_pooling_mode_is_read_from_the_configuration(folder: Path) -> None:
    mean = EmbeddingModel(folder).embed(["bread"], tokens_max=256, normalize=True)
    (folder / "1_Pooling").unlink()
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    assert not np.allclose(EmbeddingModel(folder).embed(["bread"], tokens_max=256, normalize=True), mean, atol=0.1)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": false}', encoding="utf-8")
    with pytest.raises(NoRetry, match="pooling mode"):
        EmbeddingModel(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("model.onnx", None, "neither model.onnx nor onnx/model.onnx"),
        ("model.onnx", "no model", "cannot be loaded"),
        ("tokenizer.json", None, "contains no tokenizer.json"),
        ("tokenizer.json", "{", "tokenizer.json .* cannot be read"),
        ("sentence_bert_config.json", "{", "sentence_bert_config.json .* cannot be read"),
    ],
)
def test_a_missing_or_damaged_file_of_the_model_is_reported(
    folder: Path, name: str, text: str | None, message: str
) -> None:
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(NoRetry, match=message):
        EmbeddingModel(folder)


def test_the_token_limit_falls_back_to_that_of_the_tokenizer(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    assert EmbeddingModel(folder).tokens_max == json.loads(tokenizer_text(folder))["truncation"]["max_length"]


def tokenizer_text(folder: Path) -> str:
    return (folder / "tokenizer.json").read_text(encoding="utf-8")
