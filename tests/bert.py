"""Export of a BERT encoder to ONNX from its weights, without the framework that exporters need."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

COPIED: Final = ("tokenizer.json", "sentence_bert_config.json", "config.json", "1_Pooling")
OPSET: Final = 20  # The first version with Gelu.


def write(source: Path, target: Path) -> None:
    """Write the model as one file for onnxruntime, with its tokenizer and configuration."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    onnx.save(Bert(load_file(source / "model.safetensors"), config).model(), target / "model.onnx")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy(source / name, target / name)


class Bert:
    """Builds the graph of a BERT encoder node by node."""

    def __init__(self, weights: dict[str, np.ndarray[Any, Any]], config: dict[str, Any]) -> None:
        self._weights = weights
        self._config = config
        self._heads = config["num_attention_heads"]
        self._head_size = config["hidden_size"] // self._heads
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        """Return the model, which maps token IDs to a vector for each token."""
        hidden = self._embeddings()
        mask = self._mask()
        for number in range(self._config["num_hidden_layers"]):
            hidden = self._layer(f"encoder.layer.{number}", hidden, mask)
        self._nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        size = ["batch", "tokens", self._config["hidden_size"]]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, size)
        graph = helper.make_graph(self._nodes, "bert", inputs, [output], list(self._constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(model)
        return model

    def _embeddings(self) -> str:
        words = self._add("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        types = self._add("Gather", self._weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
        tokens = self._add("Gather", self._add("Shape", "input_ids"), self._constant("one", np.array(1)))
        numbers = self._add("Range", self._constant("zero", np.array(0)), tokens, self._constant("one", np.array(1)))
        positions = self._add("Gather", self._weight("embeddings.position_embeddings.weight"), numbers)
        embeddings = self._add("Add", self._add("Add", words, types), positions)
        return self._norm("embeddings.LayerNorm", embeddings)

    def _mask(self) -> str:
        """Return what is added to attention scores: 0 for tokens, and a large negative number for padding."""
        present = self._add("Cast", "attention_mask", to=TensorProto.FLOAT)
        present = self._add("Unsqueeze", present, self._constant("head_axes", np.array([1, 2])))
        missing = self._add("Sub", self._constant("one_float", np.array(1, dtype=np.float32)), present)
        return self._add("Mul", missing, self._constant("lowest", np.array(-1e9, dtype=np.float32)))

    def _layer(self, name: str, hidden: str, mask: str) -> str:
        own = f"{name}.attention.self"
        query = self._heads_of(self._linear(f"{own}.query", hidden), [0, 2, 1, 3])
        key = self._heads_of(self._linear(f"{own}.key", hidden), [0, 2, 3, 1])
        value = self._heads_of(self._linear(f"{own}.value", hidden), [0, 2, 1, 3])
        scale = self._constant("scale", np.array(1 / math.sqrt(self._head_size), dtype=np.float32))
        scores = self._add("Add", self._add("Mul", self._add("MatMul", query, key), scale), mask)
        weighted = self._add("MatMul", self._add("Softmax", scores, axis=-1), value)
        joined = self._add(
            "Reshape",
            self._add("Transpose", weighted, perm=[0, 2, 1, 3]),
            self._constant("joined", np.array([0, 0, -1])),
        )
        attention_output = self._add("Add", self._linear(f"{name}.attention.output.dense", joined), hidden)
        attention_output = self._norm(f"{name}.attention.output.LayerNorm", attention_output)
        expanded = self._add("Gelu", self._linear(f"{name}.intermediate.dense", attention_output))
        output = self._add("Add", self._linear(f"{name}.output.dense", expanded), attention_output)
        return self._norm(f"{name}.output.LayerNorm", output)

    def _heads_of(self, hidden: str, order: list[int]) -> str:
        shape = self._constant("heads", np.array([0, 0, self._heads, self._head_size]))
        return self._add("Transpose", self._add("Reshape", hidden, shape), perm=order)

    def _linear(self, name: str, hidden: str) -> str:
        weight = self._constant(f"{name}.weight", np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        return self._add("Add", self._add("MatMul", hidden, weight), self._weight(f"{name}.bias"))

    def _norm(self, name: str, hidden: str) -> str:
        scale, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._add("LayerNormalization", hidden, scale, bias, epsilon=self._config["layer_norm_eps"], axis=-1)

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        self._constants.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name
