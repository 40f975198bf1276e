"""onnxruntime sessions of one bundle, and calls of them over buffers bound beforehand.

Knows graphs, devices, threads and the names that graphs give their inputs. Does not know lengths
of conversations (`ortolan.runtime.cache`), tokens or text.

The only module that imports onnxruntime. It never loads a library of custom operators, and takes
no option of a session from a bundle.

Notes:
    * One `Engine` serves several threads at once; each `Step` belongs to one of them.
    * A process forked after an engine was made has none of its threads: using it would wait
      forever, and destroying it at exit crashes. The child refuses the first and never does
      the second.
"""

import ctypes
import os
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle import Bundle
from ortolan.runtime.cache import Buffer, Cache
from ortolan.runtime.errors import (
    DeviceError,
    ForkedError,
    GraphError,
    InputError,
    ManifestError,
    MissingExtraError,
)
from ortolan.runtime.huge_pages import anonymous_memory, collapse_later
from ortolan.runtime.manifest import Graph, Manifest
from ortolan.runtime.packed import Packed
from ortolan.runtime.process_memory import return_free_memory
from ortolan.runtime.threads import physical_cores

try:
    import onnxruntime as ort  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError(
        "ortolan.runtime: expected the package onnxruntime, got none. "
        'Run: pip install "ortolan[cpu]"'
    ) from error

__all__ = [
    "Engine",
    "Step",
    "available_providers",
    "onnxruntime_version",
    "resolve_device",
    "save_packed",
]

INPUTS = ("input_ids", "seqlens_k", "total_sequence_length", "logit_positions")
"""Inputs of every decoder graph, before those of its states."""

LOGITS = "logits"

MAX_THREADS = 1024
"""Threads of one session; beyond this the number is a mistake."""

_ERRORS_ONLY = 3

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


def onnxruntime_version() -> str:
    """The version of onnxruntime in use."""
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    """What this onnxruntime can compute with, best first, whether or not it works here."""
    return tuple(ort.get_available_providers())


def resolve_device(device: str, offered: tuple[str, ...]) -> str:
    """Choose the device to run on.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        offered: kinds of device that the bundle was made for.

    Raises:
        DeviceError: the device is unknown, not one the bundle was made for, or not usable here.
    """
    if device != "auto" and not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise DeviceError(f"device: expected auto, cpu, cuda or cuda:N, got {device!r}.")
    kind = "cpu" if device == "auto" else device.partition(":")[0]
    if kind not in offered:
        raise DeviceError(
            f"device: expected one of the bundle's ({', '.join(offered)}), got {device!r}. "
            "Choose one of these, or export the checkpoint for this device."
        )
    if kind == "cpu":
        return kind
    if "CUDAExecutionProvider" not in available_providers():
        raise DeviceError(
            f"device {device!r}: expected an onnxruntime with CUDA, got one without. "
            'Run: pip uninstall onnxruntime && pip install "ortolan[cuda]"'
        )
    raise DeviceError(
        f"device {device!r}: this version of Ortolan generates on the CPU only. "
        'Choose device="cpu".'
    )


class Engine:
    """The sessions of one bundle on one device. Several threads may use it at once.

    With `packed` weights it computes the same in less memory.

    Attributes:
        device: the device in use.
        threads: threads within one operator.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        threads: int | None = None,
        packed: Packed | None = None,
    ) -> None:
        self.manifest = bundle.manifest
        self.device = resolve_device(device, bundle.manifest.devices)
        self.threads = _check_threads(threads)
        _check_layout(bundle.manifest)
        known = anonymous_memory()
        sessions = {
            role: _open_session(bundle, graph, self.threads, packed)
            for role, graph in bundle.manifest.graphs.items()
        }
        if packed is not None:
            return_free_memory()
        many = "decoder" if "decoder" in sessions else "prefill"
        few = "decoder" if "decoder" in sessions else "decode"
        self._many, self._few = sessions[many], sessions[few]
        self._many_from = bundle.manifest.graphs[many].min_new_tokens
        collapse_later(known)
        self._forks = _fork_guard.forks
        _fork_guard.engines.add(self)

    def cache(self, *, batch: int = 1) -> Cache:
        """Empty buffers for conversations with this model."""
        return Cache(self.manifest.states, batch=batch, context_length=self.manifest.context_length)

    def session(self, new_tokens: int) -> Any:
        """The onnxruntime session for steps of that many new tokens."""
        return self._many if new_tokens >= self._many_from else self._few

    def native_sessions(self) -> list[Any]:
        """The objects whose destruction would wait for threads."""
        return [self._many._sess, self._few._sess]

    def check_process(self) -> None:
        """Refuse to go on in a process that was forked after the engine was made.

        Raises:
            ForkedError: always then.
        """
        if self._forks != _fork_guard.forks:
            raise ForkedError(
                "model: expected the process that loaded it, got a child made by os.fork(). "
                "Load the model in the child, or start children with the method 'spawn'."
            )


class Step:
    """One call of a graph over buffers that are bound beforehand.

    Write the inputs in place, `run`, read `logits` in place.

    Attributes:
        ids: new tokens, int64 `(B, S)`.
        last_index: valid tokens of each row after the step minus one, int32 `(B,)`.
        total: tokens of the longest row after the step, int32 `()`.
        positions: indices into the new tokens to give logits for, int64 `(B, R)`.
        logits: float32 `(B, R, V)`.
    """

    __slots__ = (
        "_binding",
        "_engine",
        "_session",
        "ids",
        "last_index",
        "logits",
        "positions",
        "total",
    )

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int,
        new_tokens: int,
        positions: int,
        logits: NDArray[np.float32] | None = None,
    ) -> None:
        self._engine = engine
        self._session = engine.session(new_tokens)
        self._binding: Any = None
        self.ids = np.zeros((batch, new_tokens), np.int64)
        self.last_index = np.zeros(batch, np.int32)
        self.total = np.zeros((), np.int32)
        self.positions = np.zeros((batch, positions), np.int64)
        shape = (batch, positions, engine.manifest.vocab_size)
        self.logits = np.empty(shape, np.float32) if logits is None else logits.reshape(shape)

    def bind(self, buffers: Sequence[Buffer]) -> None:
        """Bind the states, in the order of the manifest, and everything else.

        Each state's output is bound to the buffer of its input: the kernel writes new tokens
        where they belong, and copies nothing.
        """
        self._engine.check_process()
        binding = self._session.io_binding()
        feeds: tuple[NDArray[Any], ...] = (self.ids, self.last_index, self.total, self.positions)
        for name, array in zip(INPUTS, feeds, strict=True):
            binding.bind_ortvalue_input(name, _share(array))
        binding.bind_ortvalue_output(LOGITS, _share(self.logits))
        for state, buffer in zip(self._engine.manifest.states, buffers, strict=True):
            shared = _share(buffer)
            binding.bind_ortvalue_input(state.input, shared)
            binding.bind_ortvalue_output(state.output, shared)
        self._binding = binding

    def release(self) -> None:
        """Let go of the states, so that their memory is free once the cache lets go as well."""
        self._binding = None

    def run(self) -> None:
        """Compute. The caller has made sure that `total` is within the capacity.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        self._engine.check_process()
        self._session.run_with_iobinding(self._binding)


class _ForkGuard:
    """Counts forks, seen from the child, and keeps the child from destroying sessions."""

    def __init__(self) -> None:
        self.forks = 0
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_in_child)

    def _after_in_child(self) -> None:
        self.forks += 1
        for engine in list(self.engines):
            for session in engine.native_sessions():
                # one reference too many: the destructor would join threads that are not there
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


_fork_guard = _ForkGuard()


def save_packed(bundle: Bundle, graph: Graph, folder: Path, *, weights: str) -> Path:
    """Let onnxruntime write a graph and all its weights, packed ones besides, as it runs them.

    Args:
        bundle: that holds the graph.
        graph: the one to write.
        folder: where to write it.
        weights: file name for the weights.

    Returns:
        The path of the graph.

    Raises:
        GraphError: onnxruntime cannot load the graph, or not write it.
    """
    options = _options(bundle, threads=1)
    path = folder / graph.file
    options.optimized_model_filepath = str(path)
    for key, value in (
        ("session.save_external_prepacked_constant_initializers", "1"),
        ("session.optimized_model_external_initializers_file_name", weights),
        ("session.optimized_model_external_initializers_min_size_in_bytes", "0"),
    ):
        options.add_session_config_entry(key, value)
    _load(graph, bundle.read(graph.file), options)
    return path


def _open_session(bundle: Bundle, graph: Graph, threads: int, packed: Packed | None) -> Any:
    # the bytes that were checked, not the path: the file could be another one by now
    data = bundle.read(graph.file)
    if packed is not None:
        data = packed.attach(graph.file, data)
    session = _load(graph, data, _options(bundle, threads=threads))
    _check_names(graph.file, bundle.manifest, session)
    return session


def _options(bundle: Bundle, *, threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(bundle.path))
    return options


def _load(graph: Graph, data: bytes, options: Any) -> Any:
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common base
        raise GraphError(
            f"{graph.file}: expected a graph that onnxruntime {ort.__version__} can run, got: "
            f"{str(error).partition(chr(10))[0][:300]}. Export the checkpoint again, or install "
            "the version of onnxruntime it was exported with."
        ) from error


def _check_names(file: str, manifest: Manifest, session: Any) -> None:
    expected_inputs = {*INPUTS, *(state.input for state in manifest.states)}
    expected_outputs = {LOGITS, *(state.output for state in manifest.states)}
    inputs = {value.name for value in session.get_inputs()}
    outputs = {value.name for value in session.get_outputs()}
    for kind, expected, got in (
        ("inputs", expected_inputs, inputs),
        ("outputs", expected_outputs, outputs),
    ):
        if expected != got:
            missing = ", ".join(sorted(expected - got)[:4]) or "none missing"
            surplus = ", ".join(sorted(got - expected)[:4]) or "none besides"
            raise GraphError(
                f"{file}: expected the {kind} of a decoder and its states, got missing: "
                f"{missing}; besides: {surplus}. Export the checkpoint again."
            )


def _check_layout(manifest: Manifest) -> None:
    for role, graph in manifest.graphs.items():
        if graph.sequence is not None and (role, graph.sequence) != ("decode", 1):
            raise ManifestError(
                f"{graph.file}: expected a {role} graph for any number of new tokens"
                f"{' or for one' if role == 'decode' else ''}, got one for {graph.sequence}. "
                "Export the checkpoint again."
            )
    decode, prefill = manifest.graphs.get("decode"), manifest.graphs.get("prefill")
    if decode and prefill and decode.sequence == 1 and prefill.min_new_tokens > 2:
        raise ManifestError(
            f"{decode.file}: expected a graph for steps of fewer than {prefill.min_new_tokens} "
            "new tokens, got one for 1. Export the checkpoint again."
        )
    for state in manifest.states:
        if state.shape[:1] != ("batch",):
            raise ManifestError(
                f"state {state.name!r}: expected batch as its first axis, got {state.shape}. "
                "Export the checkpoint again."
            )


def _check_threads(threads: int | None) -> int:
    if threads is None:
        return physical_cores()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads: expected a whole number of at least 1, got {threads!r}.")
    if threads > MAX_THREADS:
        raise InputError(f"threads: expected at most {MAX_THREADS}, got {threads}.")
    return threads


def _share(array: NDArray[Any]) -> Any:
    """An OrtValue over the memory of an array."""
    return ort.OrtValue.ortvalue_from_numpy(array)
