"""Memory that a bundle needs, computed from its manifest and graphs, and whether there is enough.

Loads no session and queries no device. Plans for a GPU are shown but reject nothing. On the CPU:

    rejects, lower bounds     float32 copies that kernels make at loading, states, logits
    shown, estimates          activations, copies of low-bit weights
    never counted             mapped weights: the system can drop their pages and read them again,
                              so a model larger than memory runs slowly, but runs

A request counts the tokens that it asks for. Without `max_new_tokens` that is its prompt and one
token, since most sequences end long before the context does. Free swap counts as memory. Outside
Linux the available memory is unknown, and nothing is rejected.

On a GPU weights count, since they stay in its memory. What its kernels copy and its libraries
take is not known.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import ON_DEMAND, STEPPED
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.engine.attention_kernels import GRID, chunk_tokens, query_heads, score_bytes
from ortolan.runtime.engine.windows import row_bytes
from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.graph.summary import GraphSummary
from ortolan.runtime.machine.memory import available_memory, free_swap

BATCH_TOKENS = 4096
"""Most tokens of one encoder call (`ortolan.runtime.encoder`)."""

WIDE_TENSORS = 4
"""Activations of the widest layer alive at once, as in a gated MLP."""

SMALL_BYTES = 64 << 20
"""Below this size, in bytes, skip the check: reading the available memory would take longer."""

_ACTIVATION_BYTES = {"cpu": 4, "webgpu": 4, "cuda": 2}
"""Most bytes per value: the CPU computes float16 mostly in float32; CUDA graphs have 16 bits."""

_PRODUCTS = frozenset({"ai.onnx::Gemm", "ai.onnx::MatMul", "com.microsoft::FusedMatMul"})
"""Operators whose CPU kernels pack a float32 matrix into a copy."""


_HALVES = frozenset({"float16", "bfloat16"})


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Memory by use, in bytes.

    Attributes:
        device: `cpu`, `webgpu` or `cuda`.
        context: tokens per row.
        batch: rows.
        weights: weights, mapped or copied.
        resident: the part of `weights` that is certainly copied, not mapped.
        packed: upper bound of the copies that kernels make of weights.
        copied: the part of `packed` that is certain.
        cache: states that a decoder carries.
        source: states of sources of maximum length; 0 for images, whose patches are not known.
        logits: logits of one step.
        workspace: an estimate for activations.
    """

    device: str
    context: int
    batch: int
    weights: int
    resident: int
    packed: int
    copied: int
    cache: int
    source: int
    logits: int
    workspace: int

    @property
    def total(self) -> int:
        """Upper estimate of all memory."""
        return self.weights + self.packed + self.conversation + self.workspace

    @property
    def conversation(self) -> int:
        """Memory of the rows, on top of the loaded model."""
        return self.cache + self.source + self.logits

    @property
    def certain(self) -> int:
        """Lower bound: everything that is certain, without mapped weights."""
        return self.resident + self.copied + self.conversation


def plan_memory(
    manifest: Manifest,
    graphs: Mapping[str, GraphSummary],
    *,
    context: int,
    batch: int = 1,
    is_packed: bool = False,
    is_copied: bool = False,
    device: str = "cpu",
) -> MemoryPlan:
    """Plan the memory of a bundle."""
    copies = device == "cpu" and not is_packed
    loaded = [graph for role, graph in graphs.items() if is_copied or role not in ON_DEMAND]
    sizes = {file.name: file.size for file in manifest.files}
    weights = sum(sizes[name] for name in manifest.weights)
    packed = sum(_read_bytes(graph) for graph in loaded) if copies else 0
    copied = sum(_copied_bytes(graph) for graph in loaded) if copies else 0
    if is_copied:  # onnxruntime copies the weights, then packs the copies
        packed, copied = 2 * packed, packed
    is_decoder = manifest.output is None
    row = row_bytes(manifest, context) + manifest.state_bytes("replace")
    source = 0 if manifest.source is None else manifest.source.most_vectors or 0
    return MemoryPlan(
        device=device,
        context=context,
        batch=batch,
        weights=weights,
        resident=weights if is_copied or device != "cpu" else 0,
        packed=packed,
        copied=copied,
        cache=batch * row,
        source=batch * source * manifest.state_bytes("source"),
        logits=batch * 4 * manifest.vocab_size if is_decoder else 0,
        workspace=(GRID if is_decoder else BATCH_TOKENS)
        * _ACTIVATION_BYTES[device]
        * WIDE_TENSORS
        * max((_width(graph, manifest) for graph in loaded), default=0)
        + (_scores(manifest, loaded, context) if is_decoder and device == "cpu" else 0),
    )


def _scores(manifest: Manifest, graphs: Iterable[GraphSummary], context: int) -> int:
    """Attention scores of the last chunk of a prompt as long as the context."""
    heads = query_heads(graphs, manifest.states)
    new_tokens = max(chunk_tokens(heads, max(0, context - GRID)), manifest.min_call_tokens)
    new_tokens = min(context, new_tokens)
    return score_bytes(heads, new_tokens, context)


def check_load(
    bundle: Bundle, *, is_packed: bool, adapter_bytes: int = 0, root: Path = Path("/")
) -> None:
    """Check that a bundle can be loaded on the CPU."""
    is_copied = bundle.kept is not None
    plan = plan_memory(
        bundle.manifest, bundle.graphs, context=1, is_packed=is_packed, is_copied=is_copied
    )
    packing = 'Load it with weights="map"' if is_copied else "Run `ortolan pack` on the bundle"
    stepped = sum(role in STEPPED for role in bundle.graphs)
    _check(
        plan.certain + 2 * stepped * adapter_bytes,
        what="load",
        remedy=f"{packing}, which maps these copies, or export it with --precision int4 or int8.",
        root=root,
    )


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """Memory that requests to a bundle need.

    `aside` returns the free bytes that are set aside for a prefix cache. How much memory of a GPU
    is free is unknown, so nothing is rejected there before it is allocated.
    """

    manifest: Manifest
    aside: Callable[[], int] = lambda: 0
    is_on_host: bool = True

    def check(
        self,
        *,
        tokens: int,
        rows: int,
        source_tokens: int = 0,
        held_tokens: int = 0,
        scored_tokens: int = 0,
        root: Path = Path("/"),
    ) -> None:
        """Check that the states of a request fit into memory."""
        if not self.is_on_host:
            return
        manifest = self.manifest
        needed = (
            row_bytes(manifest, tokens, rows)
            + source_tokens * manifest.state_bytes("source")
            + rows * manifest.state_bytes("replace")
            + (rows + min(scored_tokens, GRID)) * 4 * manifest.vocab_size
        )
        _check(
            needed,
            held=row_bytes(manifest, held_tokens),
            aside=self.aside(),
            what=f"generate ({rows} x {tokens // max(1, rows)} tokens)",
            remedy="Lower max_new_tokens, shorten the prompts, or pass fewer at once.",
            root=root,
        )


def size(count: int) -> str:
    """Format bytes for messages, in powers of 1000."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _check(
    needed: int, *, what: str, remedy: str, root: Path, held: int = 0, aside: int = 0
) -> None:
    if needed - held < SMALL_BYTES:
        return
    left = available_memory(root)
    if left is None:
        return
    left = max(0, left + free_swap(root) + held - aside)
    if needed > left:
        if aside > 0:
            remedy += f" Another {size(aside)} is set aside for the prefix cache."
        raise MemoryPlanError(
            f"Not enough memory to {what}: it needs {size(needed)} and {size(left)} is free. "
            f"{remedy}"
        )


def _read_bytes(graph: GraphSummary) -> int:
    """Bytes of all distinct weights; 16-bit floats count as the float32 that they become."""
    places = {
        (tensor.file, tensor.offset, tensor.length): 2 if tensor.dtype in _HALVES else 1
        for tensor in graph.external
    }
    return sum(length * factor for (_, _, length), factor in places.items())


def _copied_bytes(graph: GraphSummary) -> int:
    """Bytes of the float32 matrices that products multiply by."""
    names = {name for operator, name in graph.reads if operator in _PRODUCTS}
    return sum(
        tensor.length
        for tensor in graph.external
        if tensor.name in names and tensor.dtype == "float32" and len(tensor.dims) == 2
    )


def _width(graph: GraphSummary, manifest: Manifest) -> int:
    """The widest side of any matrix but the vocabulary's, which one position at a time meets."""
    sides = [
        side
        for tensor in graph.external
        if len(tensor.dims) == 2 and manifest.vocab_size not in tensor.dims
        for side in tensor.dims
    ]
    return max(sides, default=0)
