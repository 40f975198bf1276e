"""The kinds of bundle, and the kinds of output that an encoder gives: one entry each.

Whatever depends on the kind of a bundle is a field of its entry here, so that a new kind is a new
entry.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DECODE",
    "DECODER",
    "ENCODER",
    "KINDS",
    "MAPS_ROLE",
    "OUTPUTS",
    "PREFILL",
    "STEPPED",
    "ModelKind",
    "OutputKind",
    "ScoreFunction",
]

ENCODER, DECODER, PREFILL, DECODE = "encoder", "decoder", "prefill", "decode"
"""Roles of graphs: of whole sources; of steps of any length, of long ones, and of short ones."""

STEPPED = frozenset({DECODER, PREFILL, DECODE})
"""Graphs that are called step by step; the others take everything at once."""

MAPS_ROLE = "attention"
"""A graph that any kind may have besides: what each token attends to."""

_UNIFIED, _SPLIT = frozenset({DECODER}), frozenset({PREFILL, DECODE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """What bundles of one kind have in common.

    Attributes:
        name: as in the manifest.
        graphs: the sets of roles that a bundle may have; those of a decoder are unified or split.
            After an encoder, `decode` takes one token of one row for each source.
        updates: the states that it may have, by how they change.
        maps: pattern of the names of its attention maps.
        gives: what comes out, in words, with `{context}` for its tokens. This and the next two
            are empty for an encoder alone: they follow from its output.
        description: what it is, for the text of an error.
        use: what to open it with, for the text of an error.
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
        """Whether it takes whole sources."""
        return any(ENCODER in roles for roles in self.graphs)

    @property
    def has_decoder(self) -> bool:
        """Whether it writes texts."""
        return any(roles & STEPPED for roles in self.graphs)

    @property
    def reads_source(self) -> bool:
        """Whether its decoder reads what its encoder gives."""
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
"""Every kind of bundle, by its name in the manifest."""


ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""What turns the numbers of labels into their scores. A softmax weighs a single label against a
logit of 0, which is its logistic function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """What an encoder gives that has no decoder.

    Attributes:
        name: as in the manifest.
        by_token: whether there is one for each token; otherwise one for the whole input.
        are_logits: whether the numbers are logits; otherwise they are vectors.
        scores: what turns the numbers into scores of labels; None where there are no labels.
        distance: how far one output is from another, in words; of logits it is a divergence.
        gives: in words, with `{size}` for the size of the last axis.
        summary: the same without numbers, for the text of an error.
        use: what computes it, for the text of an error.
    """

    name: str
    by_token: bool
    are_logits: bool
    gives: str
    summary: str
    use: str
    scores: ScoreFunction | None = None
    distance: str = "cosine distance"


_CLASSIFY = "`ortolan classify`, or ortolan.load(path, Encoder).classify"

OUTPUTS = {
    output.name: output
    for output in (
        OutputKind(
            name="states",
            by_token=True,
            are_logits=False,
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
            use="ortolan.load(path, Encoder).logits",
            distance="KL",
        ),
        OutputKind(
            name="labels",
            by_token=False,
            are_logits=True,
            gives="{size} labels and their probabilities",
            summary="labels",
            use=_CLASSIFY,
            scores="softmax",
            distance="KL",
        ),
        OutputKind(
            name="tags",
            by_token=False,
            are_logits=True,
            gives="{size} labels, each with a probability of its own",
            summary="labels of which several may apply",
            use=_CLASSIFY,
            scores="sigmoid",
            distance="KL",
        ),
        OutputKind(
            name="scores",
            by_token=False,
            are_logits=False,
            gives="{size} scores, which are no probabilities",
            summary="scores",
            use=_CLASSIFY,
            scores="none",
            distance="squared relative error",
        ),
        OutputKind(
            name="embedding",
            by_token=False,
            are_logits=False,
            gives="embeddings of {size} numbers",
            summary="embeddings",
            use="`ortolan embed`, or ortolan.load(path, Encoder).embed",
        ),
    )
}
"""Every kind of output, by its name in the manifest."""
