"""Fast exports for tests: a graph is traced once per run, and no subprocess is started.

A trace depends on nothing but what `trace_graph` takes. The processes in which a user's export
verifies a bundle, or lets it write, run the same functions.
"""

import functools
import hashlib
import importlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from ortolan.errors import OrtolanError
from ortolan.export import adapter as adapter_export
from ortolan.export import pipeline
from ortolan.export.errors import ExportError
from ortolan.export.inputs.writer import let_write
from ortolan.export.locality.check import check_locality
from ortolan.export.manifest import describe
from ortolan.export.progress import Progress, silent
from ortolan.export.source import family
from ortolan.export.source import module as own
from ortolan.export.source.family import trace_graph
from ortolan.modeling.config import ModelConfig
from ortolan.runtime.bundle.manifest import Graph, Manifest
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.report import Report

GRAPHS = "ORTOLAN_TEST_GRAPHS"
"""Environment variable with a folder that keeps all exported graphs (`scripts/vocabulary.py`)."""

_STEPS = ("prefill", "decode")


def install(folder: Path) -> None:
    """Make the exports of this process fast. Tests of the replaced steps restore them.

    Args:
        folder: of this run, for the traces; processes that run tests side by side share it.
    """
    folder.mkdir(exist_ok=True)
    family.trace_graph = functools.partial(_trace_once, folder)
    setattr(pipeline, "replay", _replay_here)  # noqa: B010 - it is imported there
    setattr(adapter_export, "replay", _replay_here)  # noqa: B010 - as above
    setattr(pipeline, "write", let_write)  # noqa: B010 - as above
    setattr(pipeline, "describe", _describe_known)  # noqa: B010 - as above
    setattr(own, "check_locality", _check_once)  # noqa: B010 - as above
    if GRAPHS in os.environ:
        keep_graphs(Path(os.environ[GRAPHS]))
    _hasten_traces()


_CHECKED: dict[type, bool] = {}


def _check_once(module: nn.Module, *, context: int, takes_one: bool) -> bool:
    """Check a user's own module once per class."""
    if type(module) not in _CHECKED:
        _CHECKED[type(module)] = check_locality(module, context=context, takes_one=takes_one)
    return _CHECKED[type(module)]


def keep_graphs(folder: Path) -> None:
    """Copy every exported graph to a folder from now on."""

    def describe_and_keep(exported: Path, *arguments: Any) -> Manifest:
        for path in exported.glob("*.onnx"):
            data = path.read_bytes()
            (folder / f"{hashlib.sha256(data).hexdigest()}.onnx").write_bytes(data)
        return describe(exported, *arguments)

    setattr(pipeline, "describe", describe_and_keep)  # noqa: B010 - it is imported there


def _trace_once(
    folder: Path, config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype
) -> ir.Model:
    # Steps differ only in their number of tokens.
    role = "decoder" if role in _STEPS else role
    key = repr((config, role, graph.sequence, dtype))
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.onnx"
    if not file.exists():
        traced = trace_graph(config, role, Graph(file=role, sequence=graph.sequence), dtype=dtype)
        unfinished = folder / f"{os.getpid()}"
        unfinished.write_bytes(_without_weights(traced).SerializeToString())
        unfinished.rename(file)
    model = ir.from_proto(onnx.load(file, load_external_data=False))
    for value in model.graph.initializers.values():
        value.const_value = None
    return model


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """The same graph, with initializers reduced to type and shape."""
    for name, value in model.graph.initializers.items():
        if value.type is None or value.shape is None:
            raise ValueError(f"{name}: expected a type and a shape.")
        dtype, shape = value.type.dtype, value.shape
        value.const_value = ir.ExternalTensor("", 0, 0, dtype, shape=shape, name=name)
    return ir.to_proto(model)


def _describe_known(*arguments: Any) -> Manifest:
    """The manifest; operators that need trust are an error."""
    manifest = describe(*arguments)
    if manifest.foreign_operators:
        raise AssertionError(
            f"expected operators of the vocabulary, got {'; '.join(manifest.foreign_operators)}. "
            "Add an export with them to scripts/vocabulary.py, and run it."
        )
    return manifest


def _replay_here(
    folder: Path, progress: Progress = silent, *, adapter: Path | None = None
) -> Report:
    try:
        return verify(
            folder,
            adapter=adapter,
            device="cpu",
            threads=1,
            exact=False,
            isolate=False,
            trust=True,
            progress=lambda done, total: progress("verify", done, total),
        )
    except OrtolanError as error:
        message = f"{type(error).__name__}: {error}"
        raise ExportError(f"The new bundle does not run: {message}") from error


def _hasten_traces() -> None:
    # Tracing is slow while this logger has a listener, and pytest listens to every logger that does
    # not propagate.
    logging.getLogger("torch.__trace").propagate = True
    # `torch.onnx.export` builds a table of 500 functions at each call. If another version builds it
    # elsewhere, tests are only slower.
    with suppress(ImportError, AttributeError):
        registration = importlib.import_module("torch.onnx._internal.exporter._registration")
        table = registration.ONNXRegistry
        table.from_torchlib = staticmethod(functools.cache(table.from_torchlib))
