"""Fast exports for tests: a graph is traced once, and no subprocess is started.

The trace of a family's model depends on nothing but what `trace_graph` takes, the code that traces,
and its packages. So it stays in build/traces for later runs, until one of these changes. That of
another module is kept for this run. The processes in which a user's export verifies a bundle, or
lets it write, run the same functions.
"""

import functools
import hashlib
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from ortolan.errors import OrtolanError
from ortolan.export import adapter as adapter_export
from ortolan.export import pipeline
from ortolan.export import write as written
from ortolan.export.errors import ExportError
from ortolan.export.inputs.writer import let_write
from ortolan.export.manifest import describe
from ortolan.export.progress import Progress, silent
from ortolan.export.source import family
from ortolan.export.source import module as own
from ortolan.export.source.family import trace_graph
from ortolan.export.trace.module import Carried, trace_module
from ortolan.modeling.config import ModelConfig
from ortolan.runtime.bundle.manifest import Graph, Manifest
from ortolan.runtime.bundle.witness import Witness
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.report import Report

GRAPHS = "ORTOLAN_TEST_GRAPHS"
"""Environment variable with a folder that keeps all exported graphs (`scripts/vocabulary.py`)."""

_STEPS = ("prefill", "decode")

_REPOSITORY = Path(__file__).parents[1]
_TRACES = _REPOSITORY / "build" / "traces"
_KEPT = 4  # versions of the code whose traces stay, 20 MB each


def install(run: Path) -> None:
    """Make the exports of this process fast. Tests of the replaced steps restore them.

    Args:
        run: folder for the traces of this run; processes that run tests side by side share it.
    """
    run.mkdir(exist_ok=True)
    family.trace_graph = functools.partial(_trace_once, _folder())
    setattr(own, "trace_module", functools.partial(_trace_module_once, run))  # noqa: B010 - as below
    setattr(pipeline, "replay", _replay_here)  # noqa: B010 - it is imported there
    setattr(pipeline, "ask", _ask_nobody)  # noqa: B010 - as above
    setattr(pipeline, "beforehand", lambda *_, **__: nullcontext())  # noqa: B010 - as above
    setattr(adapter_export, "replay", _replay_here)  # noqa: B010 - as above
    setattr(adapter_export, "ask", _ask_nobody)  # noqa: B010 - as above
    setattr(written, "write_texts", let_write)  # noqa: B010 - as above
    setattr(written, "describe", _describe_known)  # noqa: B010 - as above
    if GRAPHS in os.environ:
        keep_graphs(Path(os.environ[GRAPHS]))
    _hasten_traces()


def _folder() -> Path:
    """The folder for traces by this code, which processes that run tests side by side share."""
    digest = hashlib.sha256(sys.version.encode())
    for package in ("onnx", "onnx-ir", "onnxscript", "torch"):
        digest.update(version(package).encode())
    for room in ("modeling", "export"):
        for source in sorted((_REPOSITORY / room).rglob("*.py")):
            digest.update(source.read_bytes())
    digest.update(Path(__file__).read_bytes())
    folder = _TRACES / digest.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for old in sorted(_TRACES.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait for other processes in a block with the same path."""
    with path.open("w") as file:
        with suppress(ImportError):  # where there are no such locks, both do the same work
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keep_graphs(folder: Path) -> None:
    """Copy every exported graph to a folder from now on."""

    def describe_and_keep(exported: Path, *arguments: Any) -> Manifest:
        for path in exported.glob("*.onnx"):
            data = path.read_bytes()
            (folder / f"{hashlib.sha256(data).hexdigest()}.onnx").write_bytes(data)
        return describe(exported, *arguments)

    setattr(written, "describe", describe_and_keep)  # noqa: B010 - it is imported there


def _trace_once(
    folder: Path, config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype
) -> ir.Model:
    # Steps differ only in their number of tokens.
    role = "decoder" if role in _STEPS else role
    key = repr((config, role, graph.sequence, dtype))
    graph = Graph(file=role, sequence=graph.sequence)
    make = functools.partial(trace_graph, config, role, graph, dtype=dtype)
    return _stored(folder, key.encode(), make)


def _trace_module_once(
    folder: Path,
    module: nn.Module,
    carried: Carried,
    *,
    dtype: torch.dtype,
    tied: Mapping[str, str],
    sequence: int | None = None,
    fold: Callable[[ir.Model], ir.Model],
) -> ir.Model:
    make = functools.partial(
        trace_module, module, carried, dtype=dtype, tied=tied, sequence=sequence, fold=fold
    )
    key = repr((_described(module), carried, dtype, dict(tied), sequence))
    if "<locals>" in key or " at 0x" in key:  # names that may mean something else in another test
        return make()
    return _stored(folder, key.encode(), make)


def _described(module: nn.Module) -> list[object]:
    """Everything that a module consists of, with tensors as shapes or as bytes."""
    parts: list[object] = []
    for name, part in module.named_modules():
        kind = type(part)
        parts.append((name, f"{kind.__module__}.{kind.__qualname__}"))
        values = {**vars(part), **part._parameters, **part._buffers}
        for key in sorted(values.keys() - {"_parameters", "_buffers", "_modules"}):
            value = values[key]
            if isinstance(value, torch.Tensor):
                data = b"" if value.is_meta else value.detach().cpu().float().numpy().tobytes()
                value = (value.dtype, value.shape, hashlib.sha256(data).hexdigest())
            elif isinstance(value, set):
                value = sorted(value)
            parts.append((key, value))
    return parts


def _stored(folder: Path, key: bytes, make: Callable[[], ir.Model]) -> ir.Model:
    """The trace with this key, which is made if it is not in the folder."""
    file = folder / f"{hashlib.sha256(key).hexdigest()}.onnx"
    with alone(file.with_suffix(".lock")):
        if not file.exists():
            unfinished = folder / f"{os.getpid()}"
            unfinished.write_bytes(_without_weights(make()).SerializeToString())
            unfinished.rename(file)
    model = ir.from_proto(onnx.load(file, load_external_data=False))
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = None
    return model


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """The same graph, with initializers that have no data reduced to type and shape."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            continue
        if value.type is None or value.shape is None:
            raise ValueError(f"{name}: expected a type and a shape.")
        dtype, shape = value.type.dtype, value.shape
        value.const_value = ir.ExternalTensor("", 0, 0, dtype, shape=shape, name=name)
    return ir.to_proto(model)


def _describe_known(*arguments: Any) -> Manifest:
    """The manifest; operators outside the vocabulary are an error."""
    manifest = describe(*arguments)
    if manifest.foreign_operators:
        raise AssertionError(
            f"expected operators of the vocabulary, got {'; '.join(manifest.foreign_operators)}. "
            "Add an export with them to scripts/vocabulary.py, and run it."
        )
    return manifest


def _ask_nobody(*_: Any, **__: Any) -> Witness:
    """No witness: most tests compare with transformers themselves."""
    return Witness(unasked="tests compare with it themselves")


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
