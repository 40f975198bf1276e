"""Kinds of bundle in words: what one takes, what it gives, and what to use it with.

Knows the manifest. Does not know the classes it names: those read it from here.
"""

from ortolan.runtime.bundle.manifest import ImageSource, Manifest, TextSource
from ortolan.runtime.errors import BundleKindError

__all__ = ["gives", "takes", "wrong_kind"]

_GIVES = {
    "states": "a vector for each token",
    "logits": "logits of the vocabulary for each token",
    "labels": "labels",
    "embedding": "embeddings",
}

_USES = {
    "states": "ortolan.load(path, Encoder).states",
    "logits": "ortolan.load(path, Encoder).logits",
    "labels": "`ortolan classify`, or ortolan.load(path, Encoder).classify",
    "embedding": "`ortolan embed`, or ortolan.load(path, Encoder).embed",
}


def takes(manifest: Manifest) -> str:
    """What goes in, such as `texts of at most 512 tokens`."""
    match manifest.source:
        case TextSource(max_tokens=tokens):
            return f"texts of at most {tokens} tokens"
        case ImageSource(channels=channels, height=height, width=width):
            colours = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGBA"}[channels]
            return f"images, {colours}, of {height} by {width} pixels"
        case _:
            return f"texts of at most {manifest.context_length} tokens"


def gives(manifest: Manifest) -> str:
    """What comes out, such as `embeddings of 384 numbers`."""
    output = manifest.output
    if output is None:
        limit = f"at most {manifest.context_length} tokens"
        is_behind = manifest.source is not None
        return f"another text of {limit}" if is_behind else f"more text, together {limit}"
    match output.kind:
        case "labels":
            return f"{output.size} labels and their probabilities"
        case "embedding":
            return f"embeddings of {output.size} numbers"
        case "states":
            return f"a vector of {output.size} numbers for each token"
        case _:
            return f"logits of {output.size} tokens for each token"


def wrong_kind(manifest: Manifest, *, what: str, expected: str) -> BundleKindError:
    """The error for a bundle of another kind than the request; it names what fits.

    Args:
        manifest: of the bundle.
        what: the request, such as `classify`.
        expected: what it needs, such as `a bundle that gives labels`.
    """
    output = manifest.output
    if output is not None:
        inputs = "images" if isinstance(manifest.source, ImageSource) else "texts"
        got, use = f"an encoder of {inputs} that gives {_GIVES[output.kind]}", _USES[output.kind]
    elif manifest.kind == "decoder":
        got, use = "a decoder, which continues a text", "`ortolan run`, or ortolan.load(path)"
    else:
        got = "an encoder-decoder, which writes a text from another"
        use = "`ortolan run`, or ortolan.load(path, Seq2Seq)"
    return BundleKindError(f"{what}: expected {expected}, got {got}. Use {use}.")
