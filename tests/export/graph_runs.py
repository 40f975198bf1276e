"""Runs graphs with plain onnxruntime, with states bound as in the runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from ortolan.export.passes import tidy
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.sizes import initializer_sizes
from ortolan.export.source import open_exportable
from ortolan.export.weights.blob import BlobWriter, bind, write_rest
from ortolan.modeling.models.model import TransformerModel
from ortolan.runtime import Bundle
from ortolan.runtime.bundle.manifest import Graph

Arrays = Mapping[str, NDArray[Any]]

CAPACITY = 32


def opened(path: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sessions(bundle: Bundle) -> dict[str, Any]:
    """An onnxruntime session per graph of a bundle."""
    return {role: opened(bundle.file(g.file)) for role, g in bundle.manifest.graphs.items()}


def sessions_of(module: TransformerModel, roles: Sequence[str], folder: Path) -> dict[str, Any]:
    """onnxruntime sessions of the float32 graphs of a module, without a bundle."""
    source = open_exportable(module)
    graphs: dict[str, ir.Model] = {
        role: tidy(source.trace(role, Graph(file=role), torch.float32)) for role in roles
    }
    models = list(graphs.values())
    with BlobWriter(folder, sizes=initializer_sizes(models), sums=WeightSums(models)) as writer:
        write_rest(writer, models, source.weights, source.tables, dtype=torch.float32)
        blob = writer.finish()
    for role, model in graphs.items():
        bind(model, blob)
        (folder / f"{role}.onnx").write_bytes(ir.to_proto(model).SerializeToString())
    return {role: opened(folder / f"{role}.onnx") for role in roles}


def run(session: Any, inputs: Arrays) -> dict[str, NDArray[np.float32]]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


class Steps:
    """Sequences that grow with a cache, whose buffers are both inputs and outputs.

    Args:
        session: of a decoder.
        batch: texts.
        source: what it reads besides, at every step.
    """

    def __init__(self, session: Any, batch: int, source: Arrays | None = None) -> None:
        self._session = session
        self._lengths = np.zeros(batch, np.int32)
        self._source = dict(source or {})
        random = np.random.default_rng(3)
        # Not zero, since values past the length of a row must not matter.
        self._cache = {
            value.name: ort.OrtValue.ortvalue_from_numpy(
                random.normal(size=(batch, value.shape[1], CAPACITY, value.shape[3])).astype("f")
            )
            for value in session.get_inputs()
            if value.name.startswith("past_key_values.")
        }

    def __call__(self, ids: NDArray[np.int64], new: Sequence[int]) -> NDArray[np.float32]:
        """Logits `(B, S, V)` of new tokens `(B, S)`, of which row `b` has `new[b]`."""
        self._lengths = self._lengths + np.array(new, np.int32)
        inputs = {
            "input_ids": ids,
            "seqlens_k": self._lengths - 1,
            "total_sequence_length": self._lengths.max(),
            "logit_positions": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
            **self._source,
        }
        binding = self._session.io_binding()
        for name, array in inputs.items():
            value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits")
        for name, buffer in self._cache.items():
            binding.bind_ortvalue_input(name, buffer)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
        self._session.run_with_iobinding(binding)
        logits: NDArray[np.float32] = binding.get_outputs()[0].numpy()
        return logits


def assert_close(got: NDArray[np.float32], wanted: NDArray[np.float32], *, delta: float) -> None:
    """Compare within the limit of certificates, relative to the largest number above 1."""
    bound = delta * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)
