"""Text to token ids and back.

The only module that imports the `tokenizers` library, whose panics become errors here.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import tokenizers

from ortolan.runtime.errors import ContextLengthError, TokenizerError, shown
from ortolan.runtime.inputs.ids import TextIds, TokenSpan, checked_ids
from ortolan.runtime.inputs.token_size import TokenSize, token_size
from ortolan.runtime.inputs.token_stream import TokenStream, open_stream, token_bytes
from ortolan.runtime.inputs.tokenizer_file import Outline, read_outline

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle

T = TypeVar("T")

LONG = 1024
"""Characters or tokens from which a text is worth a call for a batch, which takes about a
millisecond. Only these free the interpreter's lock: 4 MB stopped all threads for 14 s."""


class Tokenizer:
    """The tokenizer of a bundle. Threads may share it.

    Attributes:
        vocab_size: exclusive upper bound of token ids.
    """

    def __init__(self, library: tokenizers.Tokenizer, outline: Outline, vocab_size: int) -> None:
        """Wrap a loaded tokenizer; use `from_bytes` instead."""
        self._library: Any = library
        self._outline = outline
        self._decoder = outline.decoder
        self.vocab_size = vocab_size
        self._added = library.get_added_tokens_decoder()
        self._hidden = frozenset(self.special_ids())
        unknown = outline.model.unk_token
        self._unknown = (
            library.token_to_id(unknown) if isinstance(unknown, str) else outline.model.unk_id
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, model_vocab_size: int | None = None) -> "Tokenizer":
        """Load a tokenizer from the content of a tokenizer.json.

        Truncation and padding in the file are ignored.

        Args:
            data: the file.
            model_vocab_size: number of logits of the model, often padded beyond the tokenizer's
                vocabulary, which is the default.

        Raises:
            TokenizerError: the file is broken, too expensive, or has ids the model lacks.
        """
        outline = read_outline(data)
        with _LOADING:
            library = tokenizers.Tokenizer.from_buffer(data)
            library.no_truncation()
            library.no_padding()
            emptied = _emptied(library)
            own_size = 1 + max(library.get_vocab(with_added_tokens=True).values(), default=-1)
        if emptied:
            raise TokenizerError(
                f"tokenizer.json has the added token {emptied[0]!r}, which the normalizer empties. "
                "Set its `normalized` to false."
            )
        if model_vocab_size is not None and own_size > model_vocab_size:
            raise TokenizerError(
                f"tokenizer.json has ids up to {own_size - 1}, but the model has only "
                f"{model_vocab_size} tokens. Use the tokenizer of this model."
            )
        return cls(library, outline, own_size if model_vocab_size is None else model_vocab_size)

    @cached_property
    def _token_size(self) -> TokenSize:
        return token_size(self._library, self._outline)

    def check_length(self, text: str, max_tokens: int) -> None:
        """Reject a text that surely has more tokens, so that it need not be encoded."""
        if len(text) > max_tokens and self._token_size.exceeds(text, max_tokens):
            raise ContextLengthError(
                f"A text of {len(text)} characters has more tokens than the limit of {max_tokens}. "
                "Shorten it."
            )

    def encode(
        self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a text.

        Special tokens written out in the text are encoded as special tokens.

        Args:
            text: any text without lone surrogates.
            add_special_tokens: let the tokenizer add special tokens around the text.
            max_tokens: cut the text at its end so that it fits, special tokens included.

        Raises:
            TokenizerError: not a text, or the tokenizer fails on it.
        """
        self._check_text(text)
        with _ENCODING:
            ids = self._encoding(text, special=add_special_tokens).ids
            if max_tokens is not None and len(ids) > max_tokens:
                ids = self._start(text, max_tokens)[1].ids
        return self._in_vocabulary(ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of a text, and start and end of each token in characters.

        No special tokens are added. Raises what `encode` raises.
        """
        self._check_text(text)
        with _ENCODING:
            encoding = self._bare(text)
        return encoding.ids, encoding.offsets

    def encode_spans(self, text: str, *, max_tokens: int | None = None) -> TextIds:
        """Return the token ids of a text with the characters of each token."""
        with _ENCODING:
            bare, encoding = self._start(text, max_tokens)
            # those of `encoding` are trimmed twice
            places = _placed(bare.offsets, [not flag for flag in encoding.special_tokens_mask])
        ids = self._in_vocabulary(encoding.ids)
        spans = [
            None if place is None else self._span(text, token, entry, *place)
            for token, entry, place in zip(ids, encoding.tokens, places, strict=True)
        ]
        return TextIds(ids, text=text, spans=spans)

    def _span(self, text: str, token: int, entry: str, start: int, end: int) -> TokenSpan:
        if token == self._unknown:
            continues = False
        elif getattr(self._library.model, "continuing_subword_prefix", None):
            # the prefix makes an entry longer than its characters
            continues = len(entry) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        return TokenSpan(start=start, end=end, continues_word=continues)

    def text_of(self, token: int) -> str:
        """Return the text of an added token."""
        if token not in self._added:
            raise TokenizerError(
                f"tokenizer.json has no added token {token}, which stands for images or sounds. "
                "Use the tokenizer of this model."
            )
        return self._added[token].content

    def control_tokens(self, source: str) -> dict[int, str]:
        """Return the tokens that control a model, with their texts.

        These are the special tokens, and the added tokens that a chat template (given by its
        `source`) writes, such as `<tool_call>`.
        """
        return {
            token: added.content
            for token, added in self._added.items()
            if added.special or (added.content in source and not added.content.isspace())
        }

    def showing(self, texts: Iterable[str]) -> "Tokenizer":
        """Return a copy of this tokenizer whose decoding shows these special tokens."""
        other = copy(self)
        shown_texts = set(texts)
        other._hidden = frozenset(
            token for token in self._hidden if self._added[token].content not in shown_texts
        )
        return other

    def _start(
        self, text: str, max_tokens: int | None
    ) -> tuple[tokenizers.Encoding, tokenizers.Encoding]:
        """The encoding of the start of a text that fits, without and with special tokens."""
        self._check_text(text)
        bare = self._bare(text)
        encoding = self._library.post_process(bare)
        if max_tokens is not None and len(encoding.ids) > max_tokens:
            room = max_tokens - len(self.encode(""))
            if room < 1:
                raise TokenizerError(
                    f"{max_tokens} tokens leave no room for text between the special tokens."
                )
            bare.truncate(room)
            encoding = self._library.post_process(bare)
        return bare, encoding

    def _bare(self, text: str) -> tokenizers.Encoding:
        """The encoding of a text without special tokens."""
        return self._encoding(text, special=False, has_offsets=True)

    def _encoding(
        self, text: str, *, special: bool, has_offsets: bool = False
    ) -> tokenizers.Encoding:
        """The encoding of a text; without offsets, that of a long one takes half the time."""
        encoding: tokenizers.Encoding
        library = self._library
        if len(text) < LONG:
            encoding = library.encode(text, add_special_tokens=special)
        else:
            encode = library.encode_batch if has_offsets else library.encode_batch_fast
            (encoding,) = encode([text], add_special_tokens=special)
        return encoding

    def encode_pair(self, first: str, second: str, *, max_tokens: int | None = None) -> TextIds:
        """Return the ids of two texts as one input, with the type of each token.

        `max_tokens` shortens the longer text, at its end, until both fit; then both in turn.
        """
        self._check_text(first, second)
        room = None
        if max_tokens is not None:
            room = max_tokens - self._library.num_special_tokens_to_add(True)
            if room < 2:
                raise TokenizerError(
                    f"{max_tokens} tokens leave no room for texts between the special tokens."
                )
        with _ENCODING:
            parts = [self._bare(first), self._bare(second)]
            if room is not None:
                sizes = _shortened(len(parts[0].ids), len(parts[1].ids), room)
                for part, size in zip(parts, sizes, strict=True):
                    part.truncate(size)
            encoding = self._library.post_process(parts[0], parts[1])
        return TextIds(self._in_vocabulary(encoding.ids), types=encoding.type_ids)

    def pair_windows(
        self, first: str, second: str, *, max_tokens: int, stride: int
    ) -> list[TextIds]:
        """Return a text with each part of another, in windows that share `stride` of its tokens."""
        self._check_text(first, second)
        with _ENCODING:
            own, other = self._bare(first), self._bare(second)
            room = max_tokens - self._library.num_special_tokens_to_add(True) - len(own.ids)
            if room <= stride:
                raise TokenizerError(
                    f"The question leaves {max(room, 0)} of {max_tokens} tokens for the context, "
                    f"and windows overlap by {stride}. Shorten the question, or lower stride."
                )
            other.truncate(room, stride=stride)
            parts = [other, *other.overflowing]
            windows = [self._library.post_process(own, part) for part in parts]
        return [
            TextIds(
                self._in_vocabulary(window.ids),
                types=window.type_ids,
                words=_placed(_words(part), [sequence == 1 for sequence in window.sequence_ids]),
            )
            for part, window in zip(parts, windows, strict=True)
        ]

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Return a short, readable text for each token.

        White space becomes ␣. Tokens without a whole character show their vocabulary entry.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return [self._label(token) for token in self._checked_ids(ids)]

    def _label(self, token: int) -> str:
        text = self._decode([token], skip_special_tokens=False)
        if not text or "\ufffd" in text:
            return self._library.id_to_token(token) or f"{token}"
        return text.strip() or "␣"

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids.

        Raises:
            TokenizerError: an id is outside the vocabulary, or the tokenizer fails on the ids.
        """
        return self._decode(self._checked_ids(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; it may end inside a character."""
        text: str | None = self._library.id_to_token(self._checked(token))
        if text is None:
            return b""
        return text.encode() if token in self._added else token_bytes(self._decoder, text)

    def special_ids(self) -> list[int]:
        """Return the ids of the special tokens, ascending."""
        return sorted(token for token, added in self._added.items() if added.special)

    def to_json(self) -> str:
        """Return a tokenizer.json, for another library."""
        return str(self._library.to_str())

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """Return a stream whose pieces join to what `decode` returns for all tokens.

        The work per token is constant. Text of an unknown decoder only comes at the end.
        """

        def lookup(token: int) -> str | None:
            text: str | None = self._library.id_to_token(self._checked(token))
            return None if skip_special_tokens and token in self._hidden else text

        decode = partial(self._decode, skip_special_tokens=skip_special_tokens)
        return open_stream(self._decoder, lookup, decode)

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        with _DECODING:
            if skip_special_tokens:
                ids = [token for token in ids if token not in self._hidden]
            if len(ids) < LONG:
                return str(self._library.decode(ids, skip_special_tokens=False))
            return str(self._library.decode_batch([ids], skip_special_tokens=False)[0])

    def _in_vocabulary(self, ids: list[int]) -> list[int]:
        """Return ids from the library if the model has them."""
        # special tokens around a text need not be in the vocabulary, and kernels do not check
        if ids and max(ids) >= self.vocab_size:
            raise TokenizerError(
                f"The tokenizer returned the id {max(ids)}, but the vocabulary ends at "
                f"{self.vocab_size - 1}. tokenizer.json belongs to another model."
            )
        return ids

    @staticmethod
    def _check_text(*texts: str) -> None:
        for text in texts:
            if not isinstance(text, str):
                raise TokenizerError(f"text must be a str (got {type(text).__name__}).")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise TokenizerError(
                    f"The text has half a surrogate pair at index {error.start}. Decode its source "
                    "as UTF-8 or UTF-16."
                ) from None

    def _checked_ids(self, ids: Iterable[int]) -> list[int]:
        if not isinstance(ids, Iterable):
            raise TokenizerError(f"ids must be a list of integers (got {type(ids).__name__}).")
        return [self._checked(token) for token in ids]

    def _checked(self, token: int) -> int:
        """Return an id of the vocabulary as a plain int."""
        try:
            plain = index(token)
        except TypeError:
            plain = -1
        if not 0 <= plain < self.vocab_size:
            raise TokenizerError(
                f"Token ids must be integers from 0 to {self.vocab_size - 1} (got {shown(token)})."
            )
        return plain


def _words(encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """Start and end of the word of each token of a text; those of the token without words."""
    words = {word for word in encoding.word_ids if word is not None}
    spans: dict[int | None, Any] = {word: encoding.word_to_chars(word) for word in words}
    rows = zip(encoding.word_ids, encoding.offsets, strict=True)
    return [spans.get(word) or place for word, place in rows]


def _placed(values: Iterable[T], flags: Iterable[bool]) -> list[T | None]:
    """Values in the places with a flag, in order; None in the others."""
    rest = iter(values)
    return [next(rest) if flag else None for flag in flags]


def _shortened(first: int, second: int, most: int) -> tuple[int, int]:
    """Lengths of two texts of at most `most` tokens together, as the library truncates them."""
    shorter, longer = sorted((first, second))
    if shorter + longer > most:
        longer = max(shorter, most - shorter)
        if shorter + longer > most:
            shorter, longer = most // 2, most - most // 2
    return (shorter, longer) if first <= second else (longer, shorter)


def open_tokenizer(bundle: "Bundle") -> Tokenizer | None:
    """Return the tokenizer of a bundle, or `None`."""
    name = bundle.manifest.tokenizer
    if name is None:
        return None
    return Tokenizer.from_bytes(bundle.read(name), model_vocab_size=bundle.manifest.vocab_size)


def _emptied(library: tokenizers.Tokenizer) -> list[str]:
    """Return added tokens that the normalizer empties: encoding would match them forever."""
    normalizer = library.normalizer
    if normalizer is None:
        return []
    added = library.get_added_tokens_decoder().values()
    contents = [token.content for token in added if token.normalized]
    return [content for content in contents if not normalizer.normalize_str(content)]


@dataclass(frozen=True, slots=True)
class _LibraryErrors:
    """Turns everything the library raises into a TokenizerError.

    Shared: `contextmanager` would double the time to decode a sentence.
    """

    problem: str
    advice: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # a panic of the library is not an Exception, and its class cannot be imported
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            if isinstance(error, TokenizerError):
                return
            raise TokenizerError(f"{self.problem}: {error}. {self.advice}") from error


_LOADING = _LibraryErrors("tokenizer.json cannot be loaded", "Copy the file again.")
_ENCODING = _LibraryErrors("The tokenizer cannot encode this text", "Change the text.")
_DECODING = _LibraryErrors("The tokenizer cannot decode these ids", "Check the bundle.")


def read_ids(
    prompt: Any,
    tokenizer: Tokenizer | None,
    *,
    vocab_size: int,
    what: str,
    fewest: int = 0,
    most: int | None = None,
) -> list[int]:
    """Return the ids of a text, or checked ids."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise no_tokenizer(what)
        prompt = tokenizer.encode(prompt)
    return checked_ids(prompt, vocab_size=vocab_size, what=what, fewest=fewest, most=most)


def no_tokenizer(what: str) -> TokenizerError:
    """Return the error for a feature that needs a tokenizer."""
    return TokenizerError(
        f"{what}: this bundle has no tokenizer. Pass token ids (to `generate`, not `stream`), or "
        "export with --tokenizer."
    )
