"""Reads a Hugging Face `config.json` and notices the keys that were not read.

A key that is not understood may change what the model computes (a new kind of rope scaling,
say), so it is an error, never dropped.
"""

import math
from collections.abc import Mapping
from types import EllipsisType
from typing import TypeVar, overload

from ortolan.modeling.errors import ConfigError

T = TypeVar("T")

MAX_SIZE = 1 << 24
"""Above every width, vocabulary and context that was ever published."""

MAX_LAYERS = 1 << 12

_IRRELEVANT = """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels
    architectures attention_dropout attn_pdrop attribute_map auto_map bad_words_ids
    begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty
    do_sample dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label initializer_range is_decoder is_encoder_decoder label2id
    length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_past output_scores
    prefix
    pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty
    resid_pdrop return_dict return_dict_in_generate sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k
    top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    use_bfloat16 use_cache
"""
IRRELEVANT = frozenset(_IRRELEVANT.split())
"""Keys of Hugging Face configs that do not change a forward pass of inference."""


class ConfigReader:
    """The values of one config, and which of them were read.

    Args:
        values: the parsed JSON object.

    Attributes:
        name: where it came from, for messages.
    """

    def __init__(self, values: Mapping[str, object], name: str = "config.json") -> None:
        self._values = values
        self.name = name
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...

    def get(self, key: str, kind: type[T], default: object = ...) -> object:
        """The value of `key`, or `default` where it is absent or null.

        Raises:
            ConfigError: absent without a default, or not a (finite) `kind`.
        """
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            if default is ...:
                raise ConfigError(
                    f"{self.name}: expected {key}, got nothing. Is this the model's own config?"
                )
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            # A number too large for a float is as wrong as one too large for JSON.
            value = float(value) if abs(value) < 1 << 1023 else math.inf
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{self.name}: expected {key} to be finite, got {value}. Correct it.")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(
                f"{self.name}: expected {key} of type {kind.__name__}, got {value!r:.80}. "
                "Correct it."
            )
        return value

    @overload
    def size(self, key: str, *, most: int = MAX_SIZE) -> int: ...
    @overload
    def size(self, key: str, default: None, *, most: int = MAX_SIZE) -> int | None: ...
    @overload
    def size(self, key: str, default: int, *, most: int = MAX_SIZE) -> int: ...

    def size(
        self, key: str, default: int | EllipsisType | None = ..., *, most: int = MAX_SIZE
    ) -> int | None:
        """The value of `key` as a number of something, from 1 to `most`; see `get`.

        Raises:
            ConfigError: absent without a default, or not such a number.
        """
        if isinstance(default, EllipsisType):
            value: int | None = self.get(key, int)
        elif default is None:
            value = self.get(key, int, None)
        else:
            value = self.get(key, int, default)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(
                f"{self.name}: expected {key} to be 1 to {most}, got {value!r:.40}. Correct it."
            )
        return value

    def is_list(self, key: str) -> bool:
        """Whether there is a list under `key`."""
        return isinstance(self._values.get(key), list)

    def nested(self, key: str) -> "ConfigReader | None":
        """The object under `key` as a reader of its own; None where absent or null."""
        values = self.get(key, dict, None)
        return None if values is None else ConfigReader(values, f"{self.name}: {key}")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """The ids under `key`, which Hugging Face writes as null, a number or a list."""
        self._read.add(key)
        value = self._values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError(
                f"{self.name}: expected {key} to be token ids, got {value!r:.80}. Correct it."
            )
        return tuple(ids)

    def architecture(self, *known: str) -> str:
        """The class whose weights these are, which says what head the model has.

        Raises:
            ConfigError: not exactly one, or none of those known.
        """
        names = self.get("architectures", list, [])
        if len(names) != 1 or names[0] not in known:
            raise ConfigError(
                f"{self.name}: expected architectures to hold one of {', '.join(known)}, got "
                f"{names!r:.80}. This checkpoint cannot be loaded faithfully."
            )
        return str(names[0])

    def labels(self, default: int = 2) -> tuple[str, ...]:
        """The names of a classifier's outputs, in order; `default` of them if not given.

        Raises:
            ConfigError: their ids are not 0, 1, ...
        """
        named = self.get("id2label", dict, None)
        if named is None:
            count = self.size("num_labels", self.size("_num_labels", default))
            return tuple(f"LABEL_{i}" for i in range(count))
        by_id = {str(i): name for i, name in named.items()}
        names = [by_id.get(str(i)) for i in range(len(by_id))]
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"{self.name}: expected id2label to name the labels 0, 1, ..., got {named!r:.80}. "
                "Correct it."
            )
        return tuple(map(str, names))

    def refuse(self, key: str) -> None:
        """Raise ConfigError if a switch is on that changes the model in a way unknown to us."""
        if self.get(key, bool, False):
            raise ConfigError(
                f"{self.name}: expected {key} false, got true. "
                "This checkpoint cannot be loaded faithfully."
            )

    def require(self, key: str) -> None:
        """Raise ConfigError if a switch is off without which the model is unknown to us."""
        if not self.get(key, bool, True):
            raise ConfigError(
                f"{self.name}: expected {key} true, got false. "
                "This checkpoint cannot be loaded faithfully."
            )

    def skip(self, *keys: str) -> None:
        """Declare keys that this family knows to be irrelevant."""
        self._read.update(keys)

    def finish(self) -> None:
        """Raise ConfigError if a key was left unread that may matter."""
        unread = sorted(
            key
            for key, value in self._values.items()
            if key not in self._read and key not in IRRELEVANT and value is not None
        )
        if unread:
            raise ConfigError(
                f"{self.name}: expected only keys whose effect is known, got {', '.join(unread)}. "
                "Remove them if they do not change what the model computes."
            )
