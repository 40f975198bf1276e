"""The memory that a bundle takes, from its manifest and graphs alone, and whether it is there.

Knows bytes. Loads no session and asks no device: what a GPU would hold is planned from the same
manifest, and nothing is refused for it.

What is refused on the CPU, and what is not:

1. Weights are mapped. The system can drop their pages and read them again, so they never count:
   a model larger than the memory runs slowly, and does run.
2. What nobody can drop counts: the copies that kernels make of float32 matrices at loading,
   states and logits. The figures for these are from below.
3. Room for activations, and copies of weights in few bits, are estimates: they are shown, and
   refuse nothing.
4. A request counts with the tokens that are requested by number. Without `max_new_tokens` only
   the prompt and one token do, since most texts end before the context does.
5. Free swap counts as memory. Outside of Linux nothing is known, and nothing refused.

On a GPU weights lie in its memory, where nobody drops them: they count. Copies that its kernels
make are not known from here, nor what its libraries take for themselves.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Manifest, TextSource
from ortolan.runtime.engine.attention_kernels import GRID, chunk_tokens, query_heads, score_bytes
from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.graph.summary import GraphSummary
from ortolan.runtime.machine.memory import available_memory, free_swap

__all__ = [
    "MemoryPlan",
    "RequestMemory",
    "check_load",
    "plan_memory",
    "size",
]

BATCH_TOKENS = 4096
"""Most tokens of one call of an encoder (`ortolan.runtime.encoder`)."""

WIDE_TENSORS = 4
"""Activations as wide as the widest layer that are allowed for at once: those of a gated MLP."""

SMALL_BYTES = 64 << 20
"""Requests of less than this are not looked at: reading what is left would take longer."""

_ACTIVATION_BYTES = {"cpu": 4, "cuda": 2}
"""The CPU computes float16 in float32 for the most part; graphs for CUDA have 16 bits."""

_PRODUCTS = frozenset({"ai.onnx::Gemm", "ai.onnx::MatMul", "com.microsoft::FusedMatMul"})
"""Operators whose CPU kernels pack a float32 matrix into a copy of their own."""


_HALVES = frozenset({"float16", "bfloat16"})


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by what takes them.

    Attributes:
        device: whose memory it is.
        context: tokens of every row.
        batch: rows.
        weights: mapped files, or copies of them, as in the memory of a GPU.
        resident: of `weights`, what is certain: copies.
        packed: copies of them that kernels hold, at most.
        copied: of `packed`, what is certain.
        cache: states that a decoder carries.
        source: what a decoder reads of sources of the greatest length; patches of images are
            not known from here.
        logits: of one step.
        workspace: an allowance for activations.
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
        """Everything: an estimate from above."""
        return self.weights + self.packed + self.conversation + self.workspace

    @property
    def conversation(self) -> int:
        """What the rows take beside the loaded model."""
        return self.cache + self.source + self.logits

    @property
    def certain(self) -> int:
        """What must be there: without weights that are mapped."""
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
    """Plan the memory of a bundle.

    Args:
        manifest: of the bundle.
        graphs: by role; maps of attention are loaded on demand, and counted with copies alone.
        context: tokens of every row.
        batch: rows.
        is_packed: whether copies of the weights are mapped too (`ortolan pack`).
        is_copied: whether the weights are read into memory, instead of being mapped.
        device: `cpu` or `cuda`.
    """
    copies = device == "cpu" and not is_packed
    loaded = [graph for role, graph in graphs.items() if is_copied or role != MAPS_ROLE]
    sizes = {file.name: file.size for file in manifest.files}
    weights = sum(sizes[name] for name in manifest.weights)
    packed = sum(_read_bytes(graph) for graph in loaded) if copies else 0
    copied = sum(_copied_bytes(graph) for graph in loaded) if copies else 0
    if is_copied:  # onnxruntime copies what it is given, and packs it
        packed, copied = 2 * packed, packed
    is_decoder = manifest.output is None
    source = manifest.state_bytes("source") * _source_tokens(manifest)
    return MemoryPlan(
        device=device,
        context=context,
        batch=batch,
        weights=weights,
        resident=weights if is_copied or device != "cpu" else 0,
        packed=packed,
        copied=copied,
        cache=batch * _cache_bytes(manifest, context),
        source=batch * source,
        logits=batch * 4 * manifest.vocab_size if is_decoder else 0,
        workspace=(GRID if is_decoder else BATCH_TOKENS)
        * _ACTIVATION_BYTES[device]
        * WIDE_TENSORS
        * max((_width(graph, manifest) for graph in loaded), default=0)
        + (_scores(manifest, loaded, context) if is_decoder and device == "cpu" else 0),
    )


def _scores(manifest: Manifest, graphs: Iterable[GraphSummary], context: int) -> int:
    """What attention holds of the last part of a prompt as long as the context."""
    heads = query_heads(graphs, manifest.states)
    new_tokens = min(context, chunk_tokens(heads, max(0, context - GRID)))
    return score_bytes(heads, new_tokens, context)


def check_load(bundle: Bundle, *, is_packed: bool, root: Path = Path("/")) -> None:
    """Refuse to load what cannot fit.

    Args:
        bundle: to be loaded on the CPU.
        is_packed: whether copies of the weights are mapped too.
        root: folder that holds `sys` and `proc`.

    Raises:
        MemoryPlanError: the certain copies of its weights are more than the memory that is left.
    """
    is_copied = bundle.kept is not None
    plan = plan_memory(
        bundle.manifest, bundle.graphs, context=1, is_packed=is_packed, is_copied=is_copied
    )
    packing = 'Load it with weights="map"' if is_copied else "Run `ortolan pack` on the bundle"
    _check(
        plan.certain,
        what="load",
        remedy=f"{packing}, which maps these copies, or export it with --precision int4 or int8.",
        root=root,
    )


class RequestMemory:
    """What requests to a bundle take: counted when it is loaded, and then only multiplied.

    Args:
        manifest: of the bundle.
        aside: bytes that are free and kept for a prefix cache.
    """

    __slots__ = ("_aside", "_per_row", "_per_source_token", "_per_token")

    def __init__(self, manifest: Manifest, *, aside: Callable[[], int] = lambda: 0) -> None:
        self._aside = aside
        self._per_token = manifest.state_bytes("append")
        self._per_source_token = manifest.state_bytes("source")
        self._per_row = manifest.state_bytes("replace") + 4 * manifest.vocab_size

    def check(
        self,
        *,
        tokens: int,
        rows: int,
        source_tokens: int = 0,
        held_tokens: int = 0,
        root: Path = Path("/"),
    ) -> None:
        """Refuse a request whose states cannot fit.

        Args:
            tokens: of all rows together, new ones included.
            rows: computed together.
            source_tokens: of all sources together.
            held_tokens: of `tokens`, those whose states are in memory already.
            root: folder that holds `sys` and `proc`.

        Raises:
            MemoryPlanError: states and logits are more than the memory that is left.
        """
        needed = (
            tokens * self._per_token + source_tokens * self._per_source_token + rows * self._per_row
        )
        _check(
            needed,
            held=held_tokens * self._per_token,
            aside=self._aside(),
            what=f"generate ({rows} x {tokens // max(1, rows)} tokens)",
            remedy="Lower max_new_tokens, shorten the prompts, or give fewer of them at once.",
            root=root,
        )


def size(count: int) -> str:
    """Bytes for the text of an error, in powers of 1000."""
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
            remedy += f" {size(aside)} more are kept free for the prefix cache."
        raise MemoryPlanError(
            f"{what}: expected at least {size(needed)} of free memory, got {size(left)}. {remedy}"
        )


def _cache_bytes(manifest: Manifest, context: int) -> int:
    return context * manifest.state_bytes("append") + manifest.state_bytes("replace")


def _source_tokens(manifest: Manifest) -> int:
    source = manifest.source
    return source.max_tokens if isinstance(source, TextSource) else 0


def _read_bytes(graph: GraphSummary) -> int:
    """What it reads, each place once, floats of 16 bits as the float32 that is computed with."""
    places = {
        (tensor.file, tensor.offset, tensor.length): 2 if tensor.dtype in _HALVES else 1
        for tensor in graph.external
    }
    return sum(length * wider for (_, _, length), wider in places.items())


def _copied_bytes(graph: GraphSummary) -> int:
    """The float32 matrices of products."""
    names = {
        name for reader in graph.readers if reader.operator in _PRODUCTS for name in reader.weights
    }
    return sum(
        tensor.length
        for tensor in graph.external
        if tensor.name in names and tensor.dtype == "float32" and len(tensor.dims) == 2
    )


def _width(graph: GraphSummary, manifest: Manifest) -> int:
    """The widest side of a matrix; that of the vocabulary is met by one position at a time."""
    sides = [
        side
        for tensor in graph.external
        if len(tensor.dims) == 2 and manifest.vocab_size not in tensor.dims
        for side in tensor.dims
    ]
    return max(sides, default=0)
