"""Grammars restrict the generated text: a JSON schema, a regular expression or a Lark grammar.

A `Grammar` does not depend on the model. A `GrammarCompiler` belongs to one model and makes a
`GrammarMatcher` for each sequence, which masks tokens that would leave the grammar, follows the
chosen ones, and reports when the text is complete. Where the grammar leaves no choice, the matcher
returns the tokens that the tokenizer would produce for that text.

The parser is llguidance. It never raises, so its error state is checked after each call. Its fuel
bounds each step but not all preparation: regular expressions that must hold together are combined
while the grammar is read, and their states multiply. `_check_size` bounds those beforehand.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import GrammarError, MissingExtraError, shown
from ortolan.runtime.generation.schemas import (
    ESCAPES,
    DistinctKeys,
    asks_for_several_keys,
    check_schema,
    close_schemas,
)
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_CONJUNCTIONS,
    MAX_GRAMMAR_MULTIPLES,
    MAX_GRAMMAR_STATES,
)
from ortolan.runtime.machine.exit_guard import native_call

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,32}"
"""Whitespace between JSON tokens: bounded, since models can go on with it forever."""

COMPILED_GRAMMARS = 16
"""Compiled grammars to cache per model; an agent has one for each of its tools."""

PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,  # they would contain the grammar
}
"""Limits of llguidance, a tenth to a half of its defaults: a step takes milliseconds at worst."""

_ESCAPE = re.compile(r"\\u00([0-7][0-9a-fA-F])")
_REGEXES = re.compile(r'"(?:pattern|patternProperties|format)"')
_MERGING = re.compile(r'"(?:allOf|\$ref)"')
_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([0-9.eE+-]+)')
_TERMINAL = re.compile(r'/(?:[^/\\\n]|\\.)+/|"(?:[^"\\\n]|\\.)*"')
_REGEX_PART = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*\]|\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}|.", re.DOTALL
)
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Grammar:
    """Restricts the text of a completion. Needs `ortolan[grammar]`.

        Grammar.json_schema({"type": "object", "properties": {"name": {"type": "string"}}})
        Grammar.regex("yes|no")

    Attributes:
        source: in the syntax of llguidance; equal sources are compiled once.
    """

    source: str

    def __post_init__(self) -> None:
        """Check the type of the source."""
        if not isinstance(self.source, str):
            raise GrammarError(f"The source of a grammar must be text (got {shown(self.source)}).")

    @classmethod
    def json_schema(
        cls, schema: str | Mapping[str, Any] | bool, *, whitespace: bool = True
    ) -> "Grammar":
        """JSON that is valid under a schema, with properties in the order of the schema.

        Args:
            schema: as an object, or as JSON. Unsupported keywords are rejected: `not`, `oneOf`
                with overlapping alternatives, remote references, some formats, and llguidance's
                own `x-guidance`, which can disable parts of a schema.
            whitespace: allow whitespace between JSON tokens, as most models write it.

        Raises:
            GrammarError: the schema is invalid, unsupported or too complex.
            MissingExtraError: llguidance is not installed.
        """
        text = _as_json(schema)
        _check_size(text)
        check_schema(json.loads(text))
        pattern = _WHITESPACE if whitespace else ""
        try:
            source = _llguidance().LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_pattern": pattern, "json_allowed_escapes": ESCAPES}
            )
        except ValueError as error:
            raise _invalid(str(error)) from None
        return _valid(cls(source))

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Text that fully matches a regular expression.

        Args:
            pattern: in the syntax of Rust's `regex`: no look-around, no back references.

        Raises:
            GrammarError: the pattern is invalid or too complex.
            MissingExtraError: llguidance is not installed.
        """
        _check_size(pattern)
        return _valid(cls(_llguidance().LLMatcher.grammar_from_regex(pattern)))

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """Text of a context-free grammar.

        Args:
            text: in llguidance's variant of Lark's syntax, starting at the rule `start`.

        Raises:
            GrammarError: the grammar is invalid or too complex.
            MissingExtraError: llguidance is not installed.
        """
        _check_size(text)
        return _valid(cls(_llguidance().LLMatcher.grammar_from_lark(close_schemas(text))))


class GrammarMatcher:
    """The state of one sequence in its grammar."""

    def __init__(
        self,
        matcher: "LLMatcher",
        vocab_size: int,
        eos: Collection[int],
        keys: DistinctKeys | None = None,
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos = list(eos)
        self._keys = keys
        self._forced: list[int] = []
        self._bits: bytes | None = None
        self._look_ahead()

    @property
    def may_end(self) -> bool:
        """Whether the text so far is complete."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return self._matcher.is_stopped()

    @property
    def forced(self) -> Sequence[int]:
        """The next tokens, if the grammar leaves no choice of text; usually none."""
        return tuple(self._forced)

    @native_call()
    def rule_out(
        self, logits_V: NDArray[np.float32], ends: Collection[int], *, may_end: bool = True
    ) -> None:
        """Set the logits of tokens that may not come next to -inf.

        Of `ends`, that is so unless the text is complete and `may_end`.
        """
        if self._bits is None:
            self._bits = self._matcher.compute_bitmask()
        packed = np.frombuffer(self._bits, np.uint8)
        ruled_out = np.unpackbits(~packed, count=self._vocab_size, bitorder="little").view(bool)
        ruled_out[self._eos] = True
        ruled_out[list(ends)] = not (may_end and self.may_end)
        if self._keys is not None:
            self._keys.rule_out(ruled_out)
        np.copyto(logits_V, -np.inf, where=ruled_out)

    @native_call()
    def accept(self, token: int) -> None:
        """Advance by a token."""
        self._matcher.consume_token(token)
        self._check()
        if self._keys is not None:
            self._keys.accept(token)
        self._bits = None
        self._forced = self._forced[1:] if self._forced[:1] == [token] else []
        if not self._forced:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Compute the forced tokens or the mask, so that an error shows at once."""
        self._check()
        self._bits = None
        self._forced = [] if self.is_complete else self._matcher.compute_ff_tokens()
        if not self._forced:
            self._bits = self._matcher.compute_bitmask()
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _lost(self._matcher)


class GrammarCompiler:
    """Makes matchers for one model. Threads may share it.

    The first grammar loads the vocabulary, which needs 100 MB for 128,000 tokens.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = manifest.vocab_size
        self._eos = manifest.tokens.eos
        self._lock = Lock()
        # a batch, or the requests of a service, often share a grammar
        self._compiled = lru_cache(COMPILED_GRAMMARS)(self._compile)

    @native_call()
    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the start of a text."""
        with self._lock:
            compiled, counts_keys = self._compiled(grammar)
            keys = DistinctKeys(self._bytes_of, self._quoting) if counts_keys else None
            copy = compiled.deep_copy()
        return GrammarMatcher(copy, self._vocab_size, self._eos, keys)

    def _compile(self, grammar: Grammar) -> "tuple[LLMatcher, bool]":
        """A matcher to copy, and whether it needs `DistinctKeys`."""
        matcher: LLMatcher = _llguidance().LLMatcher(
            self._vocabulary, grammar.source, log_level=0, limits=_limits()
        )
        if matcher.is_error():
            raise _invalid(matcher.get_error())
        return matcher, asks_for_several_keys(_parsed(grammar.source))

    def _bytes_of(self, token: int) -> bytes:
        return self._vocabulary.decode_bytes([token])

    @cached_property
    def _quoting(self) -> dict[int, bytes]:
        """Tokens that contain a quote, with their bytes."""
        texts = ((token, self._bytes_of(token)) for token in range(self._vocab_size))
        return {token: text for token, text in texts if b'"' in text}

    @cached_property
    def _vocabulary(self) -> "LLTokenizer":
        # llguidance needs an EOS id even if the model has none; matchers rule it out
        ends = list(self._eos) or self._tokenizer.special_ids()[:1]
        try:
            vocabulary: LLTokenizer = _llguidance().LLTokenizer(
                self._tokenizer.to_json(), n_vocab=self._vocab_size, eos_token=ends
            )
        except ValueError as error:
            raise GrammarError(
                "Grammars need a byte-level or SentencePiece tokenizer with byte tokens, which "
                f"this bundle does not have ({error!s:.200})."
            ) from None
        return vocabulary


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError(
            f"Grammars need llguidance, which is not installed. Run: {pip_install('grammar')}"
        ) from error
    return llguidance


def _limits() -> "LLParserLimits":
    limits: LLParserLimits = _llguidance().LLParserLimits(**PARSER_LIMITS)
    return limits


def _as_json(schema: Any) -> str:
    """A schema, object or JSON, as JSON of an object."""
    try:
        plain = json.loads(schema) if isinstance(schema, str) else schema
        plain = {} if plain is True else plain  # both accept anything
        if isinstance(plain, Mapping):
            return json.dumps(dict(plain), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"the schema is not JSON ({error})") from None
    raise _invalid(f"the schema is not an object but {shown(plain):.40}")


def _parsed(source: str) -> Any:
    """The source of a JSON schema, parsed; `None` for Lark."""
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        return None


def _valid(grammar: Grammar) -> Grammar:
    """The grammar, if llguidance accepts it."""
    complaint = _llguidance().LLMatcher.validate_grammar(grammar.source, limits=_limits())
    if complaint and not complaint.startswith("WARNING"):
        raise _invalid(complaint)
    return grammar


_ADVICE = (
    "Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "Use anyOf, or alternatives of which at most one can hold",
)
"""Replaced advice of llguidance: with `coerce_one_of`, text that the schema excludes would pass."""


def _invalid(complaint: str) -> GrammarError:
    complaint = complaint.replace(*_ADVICE)
    return GrammarError(f"The grammar is invalid: {complaint.strip():.500}")


def _lost(matcher: "LLMatcher") -> GrammarError:
    if matcher.stop_reason() in ("ParserTooComplex", "LexerTooComplex"):
        return GrammarError("The grammar is too complex at this token. Simplify it.")
    return GrammarError(
        "No token of the vocabulary continues the text of this grammar: "
        f"{matcher.get_error().split('<non-verbose')[0].strip():.300}. Change the grammar."
    )


def _check_size(text: Any) -> None:
    """Reject a source that would take too long to compile."""
    if not isinstance(text, str):
        raise GrammarError(f"A grammar must be text (got {type(text).__name__}).")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"The grammar has half a surrogate pair at index {error.start}, which is not Unicode."
        ) from None
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"A grammar must have at most {MAX_GRAMMAR_BYTES} bytes (got {size}).")
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    combined = _LITERAL.sub("", plain).count("&")
    if _MERGING.search(plain):
        combined = max(combined, len(_REGEXES.findall(plain)))
    if combined > MAX_GRAMMAR_CONJUNCTIONS:
        raise GrammarError(
            f"A grammar must have at most {MAX_GRAMMAR_CONJUNCTIONS} patterns that can hold at the "
            f"same time (`allOf`, `$ref`, `&`; got {combined})."
        )
    product = math.prod(sorted(map(_states, _TERMINAL.findall(text)))[-1 - combined :])
    if "&" in _LITERAL.sub("", text) and product > MAX_GRAMMAR_STATES:
        raise GrammarError(
            f"Patterns joined by & must have at most {MAX_GRAMMAR_STATES} states together, the "
            f"product of their lengths (got {product:.1e}). Shorten their repetitions."
        )
    states = sum(_remainders(multiple) for multiple in _MULTIPLE.findall(plain))
    if states > MAX_GRAMMAR_MULTIPLES:
        raise GrammarError(
            f"The values of multipleOf in a grammar must add up to at most {MAX_GRAMMAR_MULTIPLES}."
        )


def _states(pattern: str) -> int:
    """Number of states of a pattern: its length with repetitions written out."""
    sums, last = [0], 0
    for part in _REGEX_PART.finditer(pattern):
        if part[0] == "(":
            sums.append(0)
        elif part[0] == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif part[1]:
            count = int(part[2] or part[1])
            sums[-1] += last * (count - 1)
            last *= count
        else:
            last = 1
            sums[-1] += 1
    return max(sum(sums), 1)


def _remainders(multiple: str) -> int:
    """Number of remainders modulo a decimal number, or more than the limit."""
    try:
        _, digits, exponent = Decimal(multiple).as_tuple()
    except InvalidOperation:
        return 0
    if not isinstance(exponent, int) or len(digits) + max(exponent, 0) > 9:
        return MAX_GRAMMAR_MULTIPLES + 1
    return int("".join(map(str, digits)) + "0" * max(exponent, 0))
