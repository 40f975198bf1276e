"""Text to token ids and back.

The only module that imports the `tokenizers` library: its panics, which Python code does not
expect, end here.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tokenizers

from ortolan.runtime.errors import TokenizerError, shown
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.token_stream import TokenStream, open_stream
from ortolan.runtime.inputs.tokenizer_file import Outline, read_outline

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle

__all__ = ["TokenStream", "Tokenizer", "no_tokenizer", "open_tokenizer", "read_ids"]


class Tokenizer:
    """The tokenizer of a bundle. Threads may share it.

    Attributes:
        vocab_size: ids are in `[0, vocab_size)`.
    """

    def __init__(self, library: tokenizers.Tokenizer, outline: Outline, vocab_size: int) -> None:
        """Wrap a loaded tokenizer; `from_bytes` is the way to make one."""
        self._library = library
        self._decoder = outline.decoder
        self.vocab_size = vocab_size
        self._added = library.get_added_tokens_decoder()
        special = [token.content for token in self._added.values() if token.special]
        self._special = frozenset(special)

    @classmethod
    def from_bytes(cls, data: bytes, *, model_vocab_size: int | None = None) -> "Tokenizer":
        """Load a tokenizer from the content of a tokenizer.json.

        Truncation and padding that the file asks for are left out: a prompt is taken whole.

        Args:
            data: the file.
            model_vocab_size: number of logits of the model, at least that of the tokenizer.
                Models often pad it; the padding has no text. `None` takes the tokenizer's own.

        Raises:
            TokenizerError: the file is broken, asks for too much, or has ids beyond the model's.
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
                "tokenizer.json: expected added tokens that the normalizer does not empty, "
                f"got {emptied[0]!r}. Set its `normalized` to false."
            )
        if model_vocab_size is not None and own_size > model_vocab_size:
            raise TokenizerError(
                f"tokenizer.json: expected ids below the model's {model_vocab_size}, "
                f"got {own_size - 1}. Take the tokenizer that belongs to the model."
            )
        return cls(library, outline, own_size if model_vocab_size is None else model_vocab_size)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text.

        Special tokens that are written out in the text are taken for special tokens.

        Args:
            text: any text without lone surrogates.
            add_special_tokens: let the tokenizer add what it puts around a text.

        Raises:
            TokenizerError: the text is not one, or the tokenizer fails on it.
        """
        self._check_text(text)
        with _ENCODING:
            encoding = self._library.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        # what it puts around a text need not be in its vocabulary, and kernels do not all look
        if ids and max(ids) >= self.vocab_size:
            raise TokenizerError(
                f"tokenizer: expected ids from 0 to {self.vocab_size - 1}, got {max(ids)}. "
                "tokenizer.json belongs to another model."
            )
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and where each stands in it: its first character, and its end.

        Nothing is put around the text.

        Raises:
            TokenizerError: as for `encode`.
        """
        self._check_text(text)
        with _ENCODING:
            encoding = self._library.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

    def control_tokens(self, source: str) -> dict[int, str]:
        """Return the tokens with a meaning beside their text, and the text of each.

        Special tokens are, and of the others that were added to the vocabulary those that a chat
        template writes, such as `<tool_call>`.

        Args:
            source: of the template.
        """
        return {
            token: added.content
            for token, added in self._added.items()
            if added.special or (added.content in source and not added.content.isspace())
        }

    def showing(self, texts: Iterable[str]) -> "Tokenizer":
        """Return this tokenizer, but decoding shows some special tokens as their texts."""
        other = copy(self)
        other._special = self._special - set(texts)
        return other

    def encode_start(self, text: str, *, max_tokens: int) -> list[int]:
        """Return the ids of as much of a text as fits, from its start.

        What the tokenizer puts around a text counts, and is put around the part.

        Raises:
            TokenizerError: as for `encode`, or there is no room for any token of the text.
        """
        ids = self.encode(text)
        if len(ids) <= max_tokens:
            return ids
        room = max_tokens - len(self.encode(""))
        if room < 1:
            raise TokenizerError(
                f"text: expected room for what the tokenizer adds and one token, got {max_tokens}."
            )
        with _ENCODING:
            encoding = self._library.encode(text, add_special_tokens=False)
            encoding.truncate(room)
            whole: list[int] = self._library.post_process(encoding).ids
            return whole

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Return a short text for each id, for people: each token by itself.

        White space is shown as ␣. Half a character, or nothing, gives the entry of the
        vocabulary as it is written there.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return [self._label(self._checked(token)) for token in _listed(ids)]

    def _label(self, token: int) -> str:
        text = self._decode([token], skip_special_tokens=False)
        if not text or "\ufffd" in text:
            return self._library.id_to_token(token) or f"{token}"
        return text.strip() or "␣"

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids.

        Raises:
            TokenizerError: an id is outside the vocabulary, or the tokenizer fails on them.
        """
        checked = [self._checked(token) for token in _listed(ids)]
        return self._decode(checked, skip_special_tokens=skip_special_tokens)

    def special_ids(self) -> list[int]:
        """The ids of special tokens, ascending."""
        added = self._library.get_added_tokens_decoder()
        return sorted(token for token, content in added.items() if content.special)

    def to_json(self) -> str:
        """A tokenizer.json of it, for another library."""
        text: str = self._library.to_str()
        return text

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """Return a stream whose pieces, joined, are what `decode` gives for all its tokens.

        The work for a token does not grow with the text. Decoders of published language models
        give text as it comes; an unknown one gives all of it at the end.
        """

        def lookup(token: int) -> str | None:
            text: str | None = self._library.id_to_token(self._checked(token))
            return None if skip_special_tokens and text in self._special else text

        def decode(ids: Sequence[int]) -> str:
            return self._decode(ids, skip_special_tokens=skip_special_tokens)

        return open_stream(self._decoder, lookup, decode)

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        with _DECODING:
            if skip_special_tokens:
                ids = [token for token in ids if not self._is_hidden(token)]
            text: str = self._library.decode(ids, skip_special_tokens=False)
            return text

    def _is_hidden(self, token: int) -> bool:
        added = self._added.get(token)
        return added is not None and added.content in self._special

    @staticmethod
    def _check_text(text: str) -> None:
        if not isinstance(text, str):
            raise TokenizerError(f"text: expected a str, got {type(text).__name__}. Decode it.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text: expected Unicode, got half a surrogate pair at index {error.start}. "
                "Decode the source of the text as UTF-8 or UTF-16."
            ) from None

    def _checked(self, token: int) -> int:
        """Return an id that is inside the vocabulary, as a plain int."""
        try:
            plain = index(token)
        except TypeError:
            plain = -1
        if not 0 <= plain < self.vocab_size:
            raise TokenizerError(
                f"id: expected an integer from 0 to {self.vocab_size - 1}, got {shown(token)}. "
                "Take ids from this tokenizer or its model."
            )
        return plain


def _listed(ids: Iterable[int]) -> Iterable[int]:
    """Refuse a single number, or anything else that has no ids in it."""
    try:
        return iter(ids)
    except TypeError:
        raise TokenizerError(
            f"ids: expected a list of integers, got {type(ids).__name__}. Give one."
        ) from None


def open_tokenizer(bundle: "Bundle") -> Tokenizer | None:
    """The tokenizer of a bundle, where it has one.

    Raises:
        TokenizerError: it is damaged, or has ids outside of the vocabulary.
    """
    name = bundle.manifest.tokenizer
    if name is None:
        return None
    return Tokenizer.from_bytes(bundle.read(name), model_vocab_size=bundle.manifest.vocab_size)


def _emptied(library: tokenizers.Tokenizer) -> list[str]:
    """Added tokens of which the normalizer leaves nothing: encoding would find them without end."""
    normalizer = library.normalizer
    if normalizer is None:
        return []
    added = library.get_added_tokens_decoder().values()
    contents = [token.content for token in added if token.normalized]
    return [content for content in contents if not normalizer.normalize_str(content)]


class _LibraryErrors:
    """Turns whatever the library raises into a TokenizerError.

    Holds nothing of one use: a generator for each would take half the time of decoding a sentence.
    """

    __slots__ = ("_advice", "_what")

    def __init__(self, what: str, advice: str) -> None:
        self._what = what
        self._advice = advice

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # a panic of the library is no Exception, and its class cannot be imported
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizerError(
                f"{self._what}: expected something the tokenizer can take, got {error}. "
                f"{self._advice}"
            ) from error


_LOADING = _LibraryErrors("tokenizer.json", "Copy the file again.")
_ENCODING = _LibraryErrors("text", "Its tokenizer cannot take this text; change the text.")
_DECODING = _LibraryErrors("ids", "Its tokenizer cannot decode them; check the bundle.")


def read_ids(
    given: Any, tokenizer: Tokenizer | None, *, vocab_size: int, what: str, fewest: int = 0
) -> list[int]:
    """The ids of a text, or ids as they are; the rest is as for `checked_ids`.

    Raises:
        TokenizerError: a text, and the tokenizer cannot take it, or there is none.
    """
    if isinstance(given, str):
        if tokenizer is None:
            raise no_tokenizer(what)
        given = tokenizer.encode(given)
    return checked_ids(given, vocab_size=vocab_size, what=what, fewest=fewest)


def no_tokenizer(what: str) -> TokenizerError:
    """The error for text where a bundle takes only ids."""
    return TokenizerError(
        f"{what}: expected a bundle with a tokenizer, got one without. "
        "Give token ids (and no `stream`), or export with the tokenizer of the checkpoint."
    )
