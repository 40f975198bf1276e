"""Engine: the onnxruntime sessions of one bundle.

Several threads may share an `Engine`; each `Runner` belongs to one thread.

A child of `os.fork()` has none of the threads that a session waits for: running it would hang, and
destroying it at exit crashes. So running raises `ForkedError`, and the session is never destroyed.
"""

import ctypes
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import (
    BOTH_WAYS,
    DECODE,
    DECODER,
    ENCODER,
    MAPS_ROLE,
    ON_DEMAND,
    PREFILL,
)
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.bundle.source import IDS, LENGTHS
from ortolan.runtime.engine.attention_kernels import query_heads
from ortolan.runtime.engine.device_states import Copier
from ortolan.runtime.engine.exactness import Exactness
from ortolan.runtime.engine.ort_session import open_session, open_small
from ortolan.runtime.engine.pictures import Pictures
from ortolan.runtime.engine.providers import choose_device, memory_name, obstacle
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.engine.threads import chosen_threads
from ortolan.runtime.errors import DeviceError, ForkedError, InputError
from ortolan.runtime.machine.huge_pages import collapse_later, pages_in_use
from ortolan.runtime.machine.memory import return_free_memory

if TYPE_CHECKING:
    from ortolan.runtime.bundle.packed import Packed
    from ortolan.runtime.engine.adapters import Adapters


class Engine:
    """The sessions of one bundle on one device. Several threads may use it at once.

    Methods that run a session raise `ForkedError` in a child of `os.fork()`. Results do not depend
    on `packed`, which only saves memory, and only on the CPU. If the bundle keeps its files
    (`Bundle.keeping`), the weights are read here and nothing is read later. `open_head` opens the
    head that predicts further tokens, on its first use.

    Attributes:
        adapter: number of the adapter of new slots; 0, the default, for none.
        heads: query heads of the widest attention.
        exactness: what calls keep to for results that do not depend on other calls.
        source_states: states that the encoder computes.
        pictures: images in prompts; `None` if the decoder reads text alone.
        is_usable: what `check_usable` checks, for steps that have no time for a call.
        lock: held while a GPU is tried.
        longest_call: result of `runner.longest_call` on a GPU.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        threads: int | None = None,
        packed: "Packed | None" = None,
        adapters: "Adapters | None" = None,
        open_head: "Callable[[], Engine] | None" = None,
    ) -> None:
        self.is_stranded, self.is_closed, self.is_usable = False, False, True
        self.manifest = bundle.manifest
        self.adapters, self.adapter = adapters, 0
        works = partial(obstacle, precision=bundle.manifest.precision)
        self.device, self.device_reason = choose_device(device, bundle.manifest.devices, works)
        if adapters is not None and self.device != "cpu":
            raise DeviceError(
                f"Adapters run on the cpu only (got {self.device}). Load the bundle with "
                'device="cpu", or export the checkpoint with the adapter merged: --adapter.'
            )
        self.threads = chosen_threads(threads, bundle.manifest)
        self.heads = query_heads(bundle.graphs.values(), bundle.manifest.states)
        pages_before = pages_in_use()
        manifest = bundle.manifest
        graphs = manifest.graphs if adapters is None else manifest.adaptable_graphs
        self.source_states = tuple(s for s in manifest.states if s.update == "source")
        self._copier = None if self.device == "cpu" else _copier(manifest, self.device)
        packed = None if self._copier else packed  # packed for the kernels of the CPU
        self._bundle = bundle
        features = manifest.features
        self.pictures = None if features is None else Pictures(features)
        self._lock, self.lock = threading.Lock(), threading.Lock()
        self.longest_call: int | None = None
        is_copied = bundle.kept is not None
        whole = bundle.keeping(weights=True) if is_copied else bundle
        adapt = None if adapters is None else adapters.adaptation()
        self._sessions = {
            role: open_session(whole, role, self.threads, packed, self.device, adapt)
            for role in graphs
            if is_copied or role not in ON_DEMAND
        }
        later = partial(open_session, bundle, threads=self.threads, device=self.device)
        self._open_later = {
            MAPS_ROLE: partial(later, role=MAPS_ROLE, packed=None),
            BOTH_WAYS: partial(later, role=BOTH_WAYS, packed=packed, adapt=adapt),
        }
        del whole, adapt
        if is_copied or packed is not None:
            return_free_memory()
        decode = DECODE if DECODE in graphs else DECODER
        prefill = PREFILL if PREFILL in graphs else decode
        self._prefill, self._decode = self._sessions.get(prefill), self._sessions.get(decode)
        operators = frozenset().union(*(graph.operators for graph in bundle.graphs.values()))
        self.exactness = Exactness.of(manifest, operators, has_prefill=prefill != decode)
        self._prefill_from = graphs[prefill].min_new_tokens if prefill in graphs else 0
        collapse_later(pages_before)
        self._open_head = open_head
        self._head: Engine | None = None
        _engines.add(self)

    def head(self) -> "Engine":
        """The sessions of the head that predicts further tokens. The first call opens them."""
        with self._lock:
            if self._head is None:
                if self._open_head is None:
                    raise InputError("MtpHead() needs a model from ortolan.load.")
                self.check_usable()
                self._head = self._open_head()
            return self._head

    @cached_property
    def identity(self) -> str:
        """Fingerprint of the bundle; any other weight, graph or token changes it.

        So does computing prompts without the prefill graph, as with adapters.
        """
        whole = fingerprint(self.manifest)
        if PREFILL in self._sessions or PREFILL not in self.manifest.graphs:
            return whole
        return hashlib.sha256(f"{whole}\nwithout {PREFILL}".encode()).hexdigest()

    @cached_property
    def identities(self) -> tuple[str, ...]:
        """Identities of states: those of the bundle alone, then those with each adapter."""
        others = () if self.adapters is None else self.adapters.identities(self.identity)
        return (self.identity, *others)

    @property
    def is_on_host(self) -> bool:
        """Whether states lie in the memory of the CPU."""
        return self._copier is None

    def slots(self, count: int = 1, *, beams: int = 1, reserved: bool = False) -> Slots:
        """Create empty slots for this model; see `Slots`."""
        slots = Slots(
            self.manifest.states,
            count=count,
            beams=beams,
            min_call_tokens=self.manifest.min_call_tokens,
            context_length=self.manifest.context_length,
            identities=self.identities,
            reserved=reserved,
            copier=self._copier,
        )
        slots.adapters[:] = self.adapter
        return slots

    @property
    def decode_tokens(self) -> int:
        """Most new tokens per row that the graph of decode steps accepts."""
        if self.manifest.takes_one:
            return 1
        is_same = self._decode is self._prefill
        return self.manifest.context_length if is_same else self._prefill_from - 1

    def ort_session(self, new_tokens: int, *, rows_per_source: int = 1) -> Any:
        """Return the onnxruntime session for this number of new tokens per row."""
        self.check_usable()
        is_decode = new_tokens < self._prefill_from and rows_per_source == 1
        return self._decode if is_decode else self._prefill

    def encode(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Compute the outputs of the encoder from inputs by name; ids are padded on the right."""
        return self._run(ENCODER, inputs)

    def encode_source(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        """Compute what the decoder reads of its sources; same inputs as `encode`."""
        self.check_usable()
        # arrays: calls with OrtValues cost more than the encoder of a small model
        names = [state.output for state in self.source_states]
        values = self._sessions[ENCODER].run(names, dict(inputs))
        lengths = inputs.get(LENGTHS)
        if lengths is None:  # images have no padding
            shape = values[0].shape
            lengths = np.full(
                shape[0], shape[self.source_states[0].shape.index("source")], np.int32
            )
        return Encoded(lengths=lengths, states=tuple(values))

    def encode_sources(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        """Compute what the decoder reads of its sources, independently of each other.

        Where one scale rounds all activations of a call, padding and other sources included, the
        encoder runs once per source, without padding; a small batch fills its kernel already.
        """
        count = len(next(iter(inputs.values())))
        if count == 1 or not self.exactness.shares_scale:
            return self.encode_source(inputs)
        parts = [self.encode_source(_one_source(inputs, index)) for index in range(count)]
        return self.joined(parts)

    def joined(self, parts: list[Encoded]) -> Encoded:
        """Join single sources of any lengths to a batch, padded with zeros."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        states = []
        for number, state in enumerate(self.source_states):
            values = [part.states[number] for part in parts]
            shape = list(values[0].shape)
            shape[0], shape[state.shape.index("source")] = len(parts), int(lengths.max())
            batch = np.zeros(shape, values[0].dtype)
            for index, value in enumerate(values):
                batch[index][tuple(slice(0, size) for size in value.shape[1:])] = value[0]
            states.append(batch)
        return Encoded(lengths=lengths, states=tuple(states))

    def attention(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Compute attention maps by name, `(B, heads, queries, keys)`. Opens their graph."""
        if MAPS_ROLE not in self.manifest.graphs:
            raise InputError(
                "attention: this bundle has no attention maps. "
                "Export the checkpoint with --attention-maps."
            )
        self.open_maps()
        if not self.manifest.takes_one:
            return self._run(MAPS_ROLE, inputs)
        return self._maps_by_token(inputs[IDS])

    def open_maps(self) -> None:
        """Open the graph of attention maps, if the bundle has one and it is not open yet."""
        if MAPS_ROLE in self.manifest.graphs:
            self._opened(MAPS_ROLE)

    @cached_property
    def sees_both_ways(self) -> bool:
        """Whether adjacent vectors of images see each other."""
        return BOTH_WAYS in self.manifest.graphs

    def both_ways_session(self) -> Any:
        """The onnxruntime session for vectors that see each other. The first call opens it."""
        return self._opened(BOTH_WAYS)

    def _opened(self, role: str) -> Any:
        """The session of a graph that is opened on demand."""
        with self._lock:
            if role not in self._sessions:
                self.check_usable()
                session = self._open_later[role]()
                # a new dictionary: a fork in another thread may be iterating over the old one
                self._sessions = {**self._sessions, role: session}
            return self._sessions[role]

    def _maps_by_token(self, ids_1S: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        """Attention maps from a graph that takes one token and the states before it."""
        states: dict[str, NDArray[Any]] = {
            state.input: np.zeros(
                [n if isinstance(n, int) else 1 for n in state.shape], state.dtype
            )
            for state in self.manifest.states
        }
        rows: dict[str, list[NDArray[np.float32]]] = {n: [] for n in self.manifest.attention_maps}
        for position in range(ids_1S.shape[1]):
            outputs = self._run(MAPS_ROLE, {IDS: ids_1S[:, position : position + 1], **states})
            states = {state.input: outputs[state.output] for state in self.manifest.states}
            for name, row in rows.items():
                row.append(outputs[name])
        return {name: np.concatenate(row, axis=2) for name, row in rows.items()}

    def _run(self, role: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Run a graph that has no cache."""
        self.check_usable()
        session = self._sessions[role]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    def strand(self) -> None:
        """Leave the sessions to the parent of this process, which was forked from it."""
        self.is_stranded, self.is_usable = True, False
        for session in self._sessions.values():
            # leak a reference: the destructor would join threads that do not exist here
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))

    def close(self) -> None:
        """Free the sessions, once the last call that runs has ended."""
        with self._lock:
            self.is_closed, self.is_usable = True, False
            if self._head is not None:
                self._head.close()
            self._sessions, self._prefill, self._decode = {}, None, None

    def check_usable(self) -> None:
        """Check that this process created the engine, and did not close it."""
        if self.is_stranded:
            raise ForkedError(
                "A child of os.fork() cannot use a model that its parent loaded. "
                "Load the model in the child, or start children with the method 'spawn'."
            )
        if self.is_closed:
            raise InputError("This model is closed. Load the bundle again.")


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def _strand() -> None:
    for engine in list(_engines):
        engine.strand()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_strand)


def _one_source(inputs: Mapping[str, NDArray[Any]], index: int) -> dict[str, NDArray[Any]]:
    """The inputs of one source, without its padding."""
    part = {name: values[index : index + 1] for name, values in inputs.items()}
    if LENGTHS in part:
        part[IDS] = np.ascontiguousarray(part[IDS][:, : int(part[LENGTHS][0])])
    return part


def _copier(manifest: Manifest, device: str) -> Copier:
    """The copier of a decoder's states in the memory of a device."""
    written = [state for state in manifest.states if state.update != "source"]
    return Copier(written, memory_name(device), partial(open_small, device=device))
