"""onnxruntime sessions of one bundle.

Never loads a library of custom operators, and takes no option of a session from a bundle.

One `Engine` serves several threads at once, each `ortolan.runtime.engine.runner.Runner` a single
one. A process forked after an engine was made may not use it: `ortolan.runtime.engine.fork_guard`.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.interface import IDS, LENGTHS, check_layout, check_names
from ortolan.runtime.bundle.kinds import ENCODER, MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.engine.attention_kernels import query_heads, whole_scores
from ortolan.runtime.engine.checked_session import CheckedSession, ort
from ortolan.runtime.engine.device import choose_device
from ortolan.runtime.engine.fork_guard import check_process, guard
from ortolan.runtime.engine.slots import Encoded, Slots
from ortolan.runtime.engine.threads import chosen_threads, is_small_translator, step_threads
from ortolan.runtime.errors import GraphError, InputError
from ortolan.runtime.machine.huge_pages import collapse_later, pages_in_use
from ortolan.runtime.machine.memory import return_free_memory

if TYPE_CHECKING:
    from ortolan.runtime.bundle.packed import Packed

__all__ = [
    "Engine",
    "available_providers",
    "onnxruntime_version",
    "run_alone",
    "save_packed",
    "share",
]

_ERRORS_ONLY = 3

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # on a CPU: docs/adr/0011

_SCALED_CALL = "com.microsoft::DynamicQuantizeMatMul"
_PAIRED = frozenset({"com.microsoft::MatMulNBits", "ai.onnx::DequantizeLinear"})
"""Products in few bits; onnxruntime makes the first of the second."""

_EXPERTS = frozenset({"com.microsoft::MoE", "com.microsoft::QMoE"})

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


def onnxruntime_version() -> str:
    """The version of onnxruntime in use."""
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    """What this onnxruntime can compute with, best first, whether or not it works here."""
    return tuple(ort.get_available_providers())


class Engine:
    """The sessions of one bundle on one device. Several threads may use it at once.

    With `packed` weights it computes the same in less memory. Of a bundle that keeps its files
    (`Bundle.keeping`) the weights are read here, and nothing later.

    Attributes:
        device: the device in use.
        device_reason: why it is this one.
        threads: threads within one operator; `step_threads` for the steps of a decoder.
        heads: of the widest attention.
        is_stranded: whether the process was forked since; see `check_process`.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        threads: int | None = None,
        packed: "Packed | None" = None,
    ) -> None:
        self.is_stranded = False
        self.manifest = bundle.manifest
        choice = choose_device(device, bundle.manifest.devices, available_providers())
        self.device, self.device_reason = choice.device, choice.reason
        self.threads = chosen_threads(threads, bundle.manifest)
        self.heads = query_heads(bundle.graphs.values(), bundle.manifest.states)
        check_layout(bundle.manifest)
        known = pages_in_use()
        graphs = bundle.manifest.graphs
        self.source_states = tuple(s for s in bundle.manifest.states if s.update == "source")
        self._bundle = bundle
        self._lock = threading.Lock()
        is_copied = bundle.kept is not None
        whole = bundle.keeping(weights=True) if is_copied else bundle
        self._sessions = {
            role: _open_session(whole, role, self.threads, packed)
            for role in graphs
            if is_copied or role != MAPS_ROLE
        }
        del whole
        if is_copied or packed is not None:
            return_free_memory()
        many = "prefill" if "prefill" in graphs else "decoder"
        few = "decode" if "decode" in graphs else "decoder"
        self._many, self._few = self._sessions.get(many), self._sessions.get(few)
        self._many_from = graphs[many].min_new_tokens if many in graphs else 0
        collapse_later(known)
        guard(self)

    @cached_property
    def identity(self) -> str:
        """Of the bundle: another for any other weight, graph or token."""
        return fingerprint(self.manifest)

    @cached_property
    def parts_matter(self) -> bool:
        """Whether what a prompt gives depends on where it is cut, even into even parts.

        Activations that are rounded by one scale for a whole call depend on what is in the call. A
        part that cannot be padded, since a state is replaced, may have an odd number of tokens.
        Tokens that are computed one by one know of no part.
        """
        is_replaced = any(state.update == "replace" for state in self.manifest.states)
        return not self.manifest.takes_one and (is_replaced or _SCALED_CALL in self._operators)

    @property
    def rows_multiple(self) -> int:
        """Rows that steps have a multiple of, where no row is to depend on those beside it.

        The kernel of low-bit products takes rows in pairs, and a last odd row by itself, by other
        sums (measured on onnxruntime 1.31 with AVX-512).
        """
        return 1 if _PAIRED.isdisjoint(self._operators) else 2

    @cached_property
    def mixes_rows(self) -> bool:
        """Whether a row depends on those beside it, as tokens that share an expert do."""
        return not _EXPERTS.isdisjoint(self._operators)

    @cached_property
    def _operators(self) -> frozenset[str]:
        return frozenset().union(*(graph.operators for graph in self._bundle.graphs.values()))

    def slots(self, count: int = 1, *, beams: int = 1, reserved: bool = False) -> Slots:
        """Empty slots for conversations with this model; see `Slots`."""
        return Slots(
            self.manifest.states,
            count=count,
            beams=beams,
            context_length=self.manifest.context_length,
            identity=self.identity,
            reserved=reserved,
        )

    @property
    def few_tokens(self) -> int:
        """Most new tokens of a row that the graph of steps takes."""
        if self.manifest.takes_one:
            return 1
        is_same = self._few is self._many
        return self.manifest.context_length if is_same else self._many_from - 1

    def session(self, new_tokens: int, *, rows_per_source: int = 1) -> Any:
        """The onnxruntime session for steps of that many new tokens in each row."""
        is_few = new_tokens < self._many_from and rows_per_source == 1
        return self._few if is_few else self._many

    def encode(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Compute the outputs of the encoder.

        Args:
            inputs: `input_ids` int64 `(B, T)`, right padded, and `lengths` int32 `(B,)`, each at
                least 1; or `pixels` float32 `(B, channels, height, width)`.

        Returns:
            Each output by name, batch first.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        return self._whole(ENCODER, inputs)

    def encode_source(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        """Compute what the decoder reads of its sources.

        Args:
            inputs: as for `encode`.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        self.check_process()
        # arrays: calls with OrtValues take longer than the encoder of a small model
        names = [state.output for state in self.source_states]
        values = self._sessions[ENCODER].run(names, dict(inputs))
        lengths = inputs.get(LENGTHS)
        if lengths is None:  # images have no padding
            shape = values[0].shape
            lengths = np.full(
                shape[0], shape[self.source_states[0].shape.index("source")], np.int32
            )
        return Encoded(lengths=lengths, states=tuple(values))

    def attention(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Compute what attends to what. The graph is opened at the first call.

        Args:
            inputs: as for `encode`; `input_ids` alone for a decoder; `target_ids` int64 `(B, S)`
                as well for the decoder of an encoder-decoder.

        Returns:
            The manifest's `attention_maps` by name, each `(B, heads, queries, keys)`.

        Raises:
            InputError: the bundle has no such graph.
            ForkedError: the process was forked after the engine was made.
        """
        if MAPS_ROLE not in self.manifest.graphs:
            raise InputError(
                "attention: expected a bundle with attention maps, got one without. "
                "Export the checkpoint with --attention-maps."
            )
        self.open_maps()
        if not self.manifest.takes_one:
            return self._whole(MAPS_ROLE, inputs)
        return self._token_by_token(inputs[IDS])

    def open_maps(self) -> None:
        """Open the graph of attention maps, which a bundle may have, unless it is open."""
        with self._lock:
            if MAPS_ROLE in self.manifest.graphs and MAPS_ROLE not in self._sessions:
                self.check_process()
                opened = _open_session(self._bundle, MAPS_ROLE, self.threads, None)
                # a new dictionary: a fork in another thread may be walking through the old one
                self._sessions = {**self._sessions, MAPS_ROLE: opened}

    def _token_by_token(self, ids_1S: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        """The maps of a text, of which the graph takes one token and the states before it."""
        carried: dict[str, NDArray[Any]] = {
            state.input: np.zeros(
                [n if isinstance(n, int) else 1 for n in state.shape], state.dtype
            )
            for state in self.manifest.states
        }
        found: dict[str, list[NDArray[np.float32]]] = {}
        for place in range(ids_1S.shape[1]):
            given = self._whole(MAPS_ROLE, {IDS: ids_1S[:, place : place + 1], **carried})
            carried = {state.input: given[state.output] for state in self.manifest.states}
            for name in self.manifest.attention_maps:
                found.setdefault(name, []).append(given[name])
        return {name: np.concatenate(rows, axis=2) for name, rows in found.items()}

    def _whole(
        self, role: str, inputs: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[np.float32]]:
        """Run a graph without a cache."""
        self.check_process()
        session = self._sessions[role]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    def native_sessions(self) -> list[Any]:
        """The objects whose destruction would wait for threads."""
        return list(self._sessions.values())

    def check_process(self) -> None:
        """Refuse to go on in a process that was forked after the engine was made.

        Raises:
            ForkedError: always then.
        """
        check_process(self)


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
    _load(graph.file, bundle.read(graph.file), options)
    return path


def run_alone(
    bundle: Bundle, graph: bytes, *, threads: int
) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    """Open a graph that is a part of one of a bundle; what comes back computes it.

    Args:
        bundle: that holds its weights.
        graph: a serialized ModelProto.
        threads: within one operator.

    Raises:
        GraphError: onnxruntime cannot load the graph.
    """
    session = _load("a part of a graph", graph, _options(bundle, threads=threads))
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _open_session(bundle: Bundle, role: str, threads: int, packed: "Packed | None") -> Any:
    graph = bundle.manifest.graphs[role]
    # the bytes that were checked, not the path: the file could be another one by now
    data = bundle.read(graph.file)
    if packed is not None:
        data = packed.attach(graph.file, data)
    if role not in (ENCODER, MAPS_ROLE):
        threads = step_threads(threads, bundle.manifest)
    session = _load(
        graph.file, data, _options(bundle, threads=threads), scores=_scores(bundle, role)
    )
    check_names(
        role,
        bundle.manifest,
        inputs=[value.name for value in session.get_inputs()],
        outputs=[value.name for value in session.get_outputs()],
    )
    return session


def _scores(bundle: Bundle, role: str) -> Callable[[], AbstractContextManager[None]]:
    """How to open sessions, such that they have the kernel of attention that is the faster one."""
    manifest = bundle.manifest
    is_short = role != ENCODER and is_small_translator(manifest)
    # of keys in 8 bits the kernel that works in tiles is the faster one (docs/adr/0018)
    is_coded = any(state.dtype == "int8" for state in manifest.states)
    return nullcontext if is_short or is_coded else whole_scores


def _options(bundle: Bundle, *, threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    if is_small_translator(bundle.manifest):
        # its tensors are small and many: a sentence takes 0.96 of the time without these two
        options.enable_cpu_mem_arena = options.enable_mem_reuse = False
    if bundle.kept is None:
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(bundle.path))
    else:
        names = bundle.manifest.weights
        kept = [bundle.kept[name] for name in names]
        options.add_external_initializers_from_files_in_memory(names, kept, [*map(len, kept)])
    return options


def _load(
    name: str,
    data: bytes,
    options: Any,
    *,
    scores: Callable[[], AbstractContextManager[None]] = whole_scores,
) -> Any:
    try:
        with scores():
            return CheckedSession(
                data, options, ["CPUExecutionProvider"], disabled_optimizers=_SLOW_FUSIONS
            )
    except Exception as error:  # onnxruntime's own classes have no common base
        raise GraphError(
            f"{name}: expected a graph that onnxruntime {ort.__version__} can run, got: "
            f"{str(error).partition(chr(10))[0][:300]}. Export the checkpoint again, or install "
            "the version of onnxruntime it was exported with."
        ) from error


def share(array: NDArray[Any]) -> Any:
    """An OrtValue over the memory of an array."""
    return ort.OrtValue.ortvalue_from_numpy(array)
