"""The source that is texts."""

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta, field

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label, Prompt, Record, TokenId
from ortolan.runtime.bundle.source import (
    IDS,
    LENGTHS,
    SAMPLE_TOKENS,
    TYPES,
    AnySource,
    Feeds,
    Problems,
    Values,
)

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest


class TextSource(AnySource, Record, frozen=True, kw_only=True, tag_field="kind", tag="text"):
    """Texts as input of an encoder.

    Attributes:
        max_tokens: most tokens of a text, special tokens included.
        vocab_size: number of ids, if it differs from the manifest's `vocab_size`.
        prompts: prefixes that an embedding model was trained with, by name ("query", "passage").
        default_prompt: name of the prefix to use if the caller names none.
        pairs: whether the encoder classifies without regard to token types, so that two texts may
            come as one input even if the tokenizer tells them apart by types.
        types: number of token types; 1 if the graph reads none.
        padding: id that fills every text up to `max_tokens` and is read like other tokens; left out
            if texts keep their length.
    """

    medium = "texts"

    max_tokens: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    vocab_size: Annotated[int, Meta(ge=1, le=limits.MAX_VOCABULARY)] | None = None
    prompts: Annotated[dict[Label, Prompt], Meta(max_length=limits.MAX_PROMPTS)] = field(
        default_factory=dict
    )
    default_prompt: Label | None = None
    pairs: bool = False
    types: Annotated[int, Meta(ge=1, le=limits.MAX_TOKEN_TYPES)] = 1
    padding: TokenId | None = None

    @property
    def most_vectors(self) -> int:
        return self.max_tokens

    @property
    def words(self) -> str:
        named = f"; prompts: {', '.join(self.prompts)}" if self.prompts else ""
        return f"texts of at most {self.max_tokens} tokens{named}"

    def inputs(self) -> Values:
        ids = "int64", ("batch", "tokens")
        types: Values = {TYPES: ids} if self.types > 1 else {}
        return {IDS: ids, LENGTHS: ("int32", ("batch",))} | types

    def sample(self, vocab_size: int) -> Feeds:
        count = min(SAMPLE_TOKENS, self.max_tokens)
        ids = np.arange(count)[None] % (self.vocab_size or vocab_size)
        types: Feeds = {TYPES: np.arange(count)[None] % 2} if self.types > 1 else {}
        lengths = np.array([count], np.int32)
        return {IDS: ids, LENGTHS: lengths, **types}

    def count(self, value: Any) -> int:
        return len(value)

    def problems(self, manifest: "Manifest") -> Problems:
        if self.padding is not None and self.padding >= manifest.vocab_size:
            yield (
                f"an id below {manifest.vocab_size}, the vocabulary size, for 'source.padding'",
                f"{self.padding}",
            )
        stands_alone = not manifest.model_kind.has_decoder
        if stands_alone and self.max_tokens != manifest.context_length:
            yield (
                f"{manifest.context_length} source tokens, like the context",
                f"{self.max_tokens}",
            )
        if self.types > 1 and not stands_alone:
            yield "no token types before a decoder", f"{self.types}"
        if self.padding is not None and not stands_alone:
            yield "no padding of texts before a decoder", f"{self.padding}"
        if self.default_prompt and self.default_prompt not in self.prompts:
            yield "one of the prompts as default prompt", self.default_prompt
