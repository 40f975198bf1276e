"""Texts, pairs of texts and token ids as inputs of an encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.source import IDS, LENGTHS, TYPES, Feeds
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import ContextLengthError, InputError, TokenizerError, shown
from ortolan.runtime.inputs.ids import TextIds, checked_ids
from ortolan.runtime.inputs.input_reader import InputReader, ReadInput
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer


class TextReader(InputReader):
    """Reads texts, pairs of texts and token ids."""

    def __init__(self, source: TextSource, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        super().__init__(source, source.max_tokens)
        self._tokenizer = tokenizer
        # tokens around a text, such as [CLS] and [SEP]
        self._added = 0 if tokenizer is None else len(tokenizer.encode(""))
        self.prompts, self.default_prompt = source.prompts, source.default_prompt
        self._vocab_size = source.vocab_size or manifest.vocab_size
        self._types, self._has_pairs = source.types, source.pairs
        self._filler, self._padding = source.padding, manifest.tokens.pad or 0

    def read(self, value: Any, *, truncate: bool = False) -> ReadInput:
        """See `InputReader`."""
        most = self.max_tokens if self.checked_truncate(truncate) else None
        if isinstance(value, str):
            ids = self._for("text", value, most=most).encode(value, max_tokens=most)
            if len(ids) <= self._added:
                raise _no_tokens(value)
        elif _is_pair(value):
            ids = self._pair(*value, most=most)
        else:
            ids = checked_ids(value, vocab_size=self._vocab_size, what="ids", fewest=1)[:most]
        ids = self._checked_length(ids)
        # padding that the encoder reads like other tokens
        missing = 0 if self._filler is None else self.max_tokens - len(ids)
        return ids + [self._filler or 0] * missing if missing else ids

    def feeds(self, batch: Sequence[ReadInput]) -> Feeds:
        """Return graph inputs; texts are padded on the right."""
        texts = pad(batch, padding=self._padding)
        if self._types > 1:
            types = [getattr(ids, "types", ()) or [0] * len(ids) for ids in batch]
            texts[TYPES] = pad(types, padding=0)[IDS]
        return texts

    def read_spans(self, value: Any, *, truncate: bool = False) -> ReadInput:
        """See `InputReader`."""
        most = self.max_tokens if self.checked_truncate(truncate) else None
        if not isinstance(value, str):
            raise InputError(
                f"Labels of tokens need a text, whose characters they name (got {shown(value)})."
            )
        ids = self._for("text", value, most=most).encode_spans(value, max_tokens=most)
        if not any(ids.spans):
            raise _no_tokens(value)
        return self._checked_length(ids)

    def read_windows(
        self, question: str, context: str, *, max_tokens: int, stride: int
    ) -> list[TextIds]:
        """See `InputReader`."""
        tokenizer = self._for("question and context", most=max_tokens)
        windows = tokenizer.pair_windows(question, context, max_tokens=max_tokens, stride=stride)
        if not any(windows[0].words):
            raise _no_tokens(context)
        self._check_types(windows[0])
        return windows

    def _checked_length(self, ids: list[int]) -> list[int]:
        if len(ids) > self.max_tokens:
            raise ContextLengthError(
                f"The input has {len(ids)} tokens, and the limit is {self.max_tokens}. Split it, "
                "or with an Encoder pass truncate=True."
            )
        return ids

    def _for(self, what: str, *texts: str, most: int | None) -> Tokenizer:
        """The tokenizer for texts, which may not be too long unless they are cut."""
        if self._tokenizer is None:
            raise no_tokenizer(what)
        for text in texts if most is None else ():
            self._tokenizer.check_length(text, self.max_tokens)
        return self._tokenizer

    def _pair(self, first: str, second: str, *, most: int | None) -> list[int]:
        tokenizer = self._for("pairs of texts", first, second, most=most)
        ids = tokenizer.encode_pair(first, second, max_tokens=most)
        self._check_types(ids)
        if any(ids.types) and self._types == 1 and not self._has_pairs:
            raise TokenizerError(
                "This tokenizer marks the second text of a pair by type ids, which the bundle does "
                "not read. Only classifiers read them; export older ones again."
            )
        return ids

    def _check_types(self, ids: TextIds) -> None:
        if self._types > 1 and max(ids.types) >= self._types:
            raise TokenizerError(
                f"The tokenizer marks a token of the pair with type {max(ids.types)}, and the "
                f"model has types up to {self._types - 1}. tokenizer.json belongs to another model."
            )


def _no_tokens(text: str) -> InputError:
    return InputError(f"The text {text[:40]!r} has no tokens. Leave it out.")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(t, str) for t in value)


def pad(rows: Sequence[Any], *, padding: int) -> Feeds:
    """Return ids of any lengths as `input_ids` int64 `(B, T)` and `lengths` int32 `(B,)`."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
    return {IDS: np.array(padded, np.int64), LENGTHS: np.array(lengths, np.int32)}
