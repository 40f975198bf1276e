"""Kinds of bundle, and kinds of encoder output: one table entry each.

Whatever depends on the kind is a field of its entry, so a new kind is a new entry.
"""

from dataclasses import dataclass
from typing import Literal

ENCODER, DECODER, PREFILL, DECODE = "encoder", "decoder", "prefill", "decode"
"""Roles of graphs: whole sources; steps of any length, long ones (prefill), short ones (decode)."""

BOTH_WAYS = "both_ways"
"""Role of the graph for vectors of an image that attend to each other in both directions."""

STEPPED = frozenset({DECODER, PREFILL, DECODE, BOTH_WAYS})
"""Roles that are called step by step; the other graphs take everything at once."""

MAPS_ROLE = "attention"
"""Role of the optional graph that returns attention maps."""

ON_DEMAND = frozenset({MAPS_ROLE, BOTH_WAYS})
"""Roles of graphs that are opened when they are first used."""

_UNIFIED, _SPLIT = frozenset({DECODER}), frozenset({PREFILL, DECODE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """Properties of a kind of bundle.

    The last three are empty for an encoder, where they depend on its output.

    Attributes:
        graphs: the sets of roles that it may have: a decoder is one graph, or `prefill` and
            `decode`. After an encoder, `decode` takes one row per source.
        updates: updates that its states may have.
        maps: pattern for names of attention maps.
        gives: description of its output, with `{context}` for the context length.
        description: what it is, for error messages.
        use: how to use it, for error messages.
    """

    name: str
    graphs: tuple[frozenset[str], ...]
    updates: tuple[str, ...] = ()
    maps: str
    gives: str = ""
    description: str = ""
    use: str = ""

    @property
    def has_encoder(self) -> bool:
        """Whether there is an encoder."""
        return any(ENCODER in roles for roles in self.graphs)

    @property
    def has_decoder(self) -> bool:
        """Whether there is a decoder."""
        return any(roles & STEPPED for roles in self.graphs)

    @property
    def reads_source(self) -> bool:
        """Whether the decoder reads what an encoder computed."""
        return self.has_encoder and self.has_decoder


KINDS = {
    kind.name: kind
    for kind in (
        ModelKind(
            name="decoder",
            graphs=(_UNIFIED, _SPLIT),
            updates=("append", "replace"),
            maps=r"decoder\.\d+\.(self|read|write)",
            gives="more text, together at most {context} tokens",
            description="a decoder, which continues a text",
            use="`ortolan run`, or ortolan.load(path)",
        ),
        ModelKind(
            name="encoder",
            graphs=(frozenset({ENCODER}),),
            maps=r"encoder\.\d+\.self",
        ),
        ModelKind(
            name="encoder-decoder",
            graphs=(_UNIFIED | {ENCODER}, _SPLIT | {ENCODER}),
            updates=("append", "replace", "source"),
            maps=r"encoder\.\d+\.self|decoder\.\d+\.(self|cross)",
            gives="another text of at most {context} tokens",
            description="an encoder-decoder, which writes a text from another",
            use="`ortolan run`, or ortolan.load(path, Seq2Seq)",
        ),
    )
}
"""Kinds of bundle by name."""


ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""Function from the numbers of labels to their scores. The softmax of a single label compares it
with a logit of 0, which makes it a sigmoid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """Properties of a kind of encoder output.

    Attributes:
        gives: description with `{size}` for the size of the last axis.
        summary: description without numbers, for error messages.
        use: what computes it, for error messages.
        by_token: whether there is one output per token, instead of one per input.
        are_logits: whether the numbers are logits, instead of vectors or scores.
        scores: function from numbers to scores of labels; `None` without labels.
        may_be_named: whether labels are optional, and name symbols instead of classes.
    """

    name: str
    gives: str
    summary: str
    use: str
    by_token: bool = False
    are_logits: bool = False
    scores: ScoreFunction | None = None
    may_be_named: bool = False

    @property
    def distance(self) -> str:
        """Name of the distance between two outputs."""
        if self.are_logits:
            return "KL"
        return "cosine distance" if self.scores is None else "squared relative error"


_CLASSIFY = "`ortolan classify`, or ortolan.load(path, Encoder).classify"

OUTPUTS = {
    output.name: output
    for output in (
        OutputKind(
            name="states",
            by_token=True,
            gives="a vector of {size} numbers for each token",
            summary="a vector for each token",
            use="ortolan.load(path, Encoder).states",
        ),
        OutputKind(
            name="logits",
            by_token=True,
            are_logits=True,
            gives="logits of {size} tokens for each token",
            summary="logits of the vocabulary for each token",
            use="`ortolan fill`, or ortolan.load(path, Encoder).logits",
        ),
        OutputKind(
            name="labels",
            are_logits=True,
            gives="{size} labels and their probabilities",
            summary="labels",
            use=_CLASSIFY,
            scores="softmax",
        ),
        OutputKind(
            name="tags",
            are_logits=True,
            gives="{size} labels, each with its own probability",
            summary="labels, any number of which may apply",
            use=_CLASSIFY,
            scores="sigmoid",
        ),
        OutputKind(
            name="scores",
            gives="{size} scores, not probabilities",
            summary="scores",
            use=_CLASSIFY,
            scores="none",
        ),
        OutputKind(
            name="token_labels",
            by_token=True,
            are_logits=True,
            gives="{size} labels and their probabilities for each token",
            summary="labels for each token",
            use="`ortolan classify`, or ortolan.load(path, Encoder).classify_tokens",
            scores="softmax",
        ),
        OutputKind(
            name="spans",
            by_token=True,
            gives="logits of an answer's start and end for each token",
            summary="the start and end of answers",
            use="`ortolan answer`, or ortolan.load(path, Encoder).answer",
            scores="none",
        ),
        OutputKind(
            name="ctc",
            by_token=True,
            are_logits=True,
            gives="logits of {size} symbols for each vector of a sound",
            summary="logits of symbols, one of them blank",
            use="`ortolan transcribe`, or ortolan.load(path, Encoder).transcribe",
            may_be_named=True,
        ),
        OutputKind(
            name="embedding",
            gives="embeddings of {size} numbers",
            summary="embeddings",
            use="`ortolan embed`, or ortolan.load(path, Encoder).embed",
        ),
    )
}
"""Kinds of encoder output by name."""
