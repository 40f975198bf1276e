"""Exports as most tests need them: a graph is traced once a run, a bundle verified in this process.

A trace depends on nothing but what `trace_graph` takes, and a copy of one differs from it in the
names of some nodes alone. The process in which a user's export verifies a bundle runs the same
function.
"""

import functools
import importlib
from contextlib import suppress
from pathlib import Path

import onnx_ir as ir
import torch

from ortolan.errors import OrtolanError
from ortolan.export import pipeline
from ortolan.export.errors import ExportError
from ortolan.export.kinds import trace_graph
from ortolan.modeling.config import ModelConfig
from ortolan.runtime.bundle.manifest import Graph
from ortolan.runtime.certificate import Report, verify

_STEPS = ("prefill", "decode")


def install() -> None:
    """Make the exports of this process quick. A test about these steps sets the real ones."""
    for name, quick in _QUICK.items():
        setattr(pipeline, name, quick)
    _read_torchlib_once()


def _earlier_trace(config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype) -> ir.Model:
    # All steps are traced alike, but for the number of their tokens.
    role = "decoder" if role in _STEPS else role
    return _traced(config, role, graph.sequence, dtype).clone()


@functools.cache
def _traced(config: ModelConfig, role: str, sequence: int | None, dtype: torch.dtype) -> ir.Model:
    return trace_graph(config, role, Graph(file=role, sequence=sequence), dtype=dtype)


def _replay_here(folder: Path) -> Report:
    try:
        return verify(folder, device="cpu", threads=1)
    except OrtolanError as error:
        message = f"{type(error).__name__}: {error}"
        raise ExportError(f"verify: expected the new bundle to run, got: {message}") from error


_QUICK = {"trace_graph": _earlier_trace, "replay": _replay_here}
"""What `install` puts in the place of a function of the pipeline."""


def _read_torchlib_once() -> None:
    # `torch.onnx.export` reads the sources of some 500 functions at each call. Another version may
    # have them elsewhere: then tests are slower, and not wrong.
    with suppress(ImportError, AttributeError):
        registration = importlib.import_module("torch.onnx._internal.exporter._registration")
        library = registration.onnxscript_apis
        library.get_torchlib_ops = functools.cache(library.get_torchlib_ops)
