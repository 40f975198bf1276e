"""Traces that tests share, where what comes after the trace is what they are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import onnx_ir as ir
import pytest
import torch

from ortolan.export import pipeline
from ortolan.export.kinds import trace_graph
from ortolan.modeling.config import ModelConfig
from ortolan.runtime.bundle.manifest import Graph

_STEPS = ("prefill", "decode")


@contextmanager
def traced_once() -> Iterator[None]:
    """Exports take their graphs from an earlier one of the same model, if there was one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "trace_graph", _earlier)
        yield


def _earlier(config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype) -> ir.Model:
    # All steps are traced alike, but for the number of their tokens.
    role = "decoder" if role in _STEPS else role
    return _traced(config, role, graph.sequence, dtype).clone()


@cache
def _traced(config: ModelConfig, role: str, sequence: int | None, dtype: torch.dtype) -> ir.Model:
    return trace_graph(config, role, Graph(file=role, sequence=sequence), dtype=dtype)
