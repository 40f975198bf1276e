"""Settings of `generate`: where a text begins and ends, what is never chosen, and how to sample."""

from collections.abc import Mapping
from typing import Any

from transformers import DynamicCache

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import UNKNOWN, Answer, Either
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic
from ortolan.runtime.generation.recommended import recommendation

SAMPLING, CONTEXT = "recommended sampling", "tokens of a context"

WINDOWS = "windows of the layers"
"""Probes are too short for most of them."""

PLACEHOLDER = "placeholder of images or sounds"

PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
"""Keys of a config that name it."""

SAME_AT_ALL_LENGTHS = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose frequencies do not limit a context."""

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Options of sampling that transformers and bundles share, with values that change nothing.

As its documentation says, a bundle adds no top_k of 50.
"""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """The fields that `generate` reads, for a model that generates."""
    manifest = bundled.manifest
    if not manifest.model_kind.has_decoder:
        return {}
    names = ["bos", "eos", "suppressed", "suppressed_first", "forced_last", SAMPLING]
    if manifest.model_kind.has_encoder:
        names += ["start", "forced_first"]
    else:
        names += [CONTEXT, WINDOWS] if bundled.windows else [CONTEXT]
        names += [PLACEHOLDER] if manifest.features else []
    return {name: name for name in names}


def ours(bundled: Bundled, name: str) -> Answer:
    """A field of the manifest, or the sampling that the bundle recommends."""
    if name == SAMPLING:
        sampling = recommendation(bundled.bundle).sampling
        return {option: f"{getattr(sampling, option):g}" for option in DEFAULTS}
    if name == CONTEXT:
        return bundled.manifest.context_length
    if name == WINDOWS:
        return list(bundled.windows)
    if name == PLACEHOLDER:
        return bundled.manifest.features and bundled.manifest.features.token
    value = getattr(bundled.manifest.tokens, name)
    return sorted(set(value)) if isinstance(value, tuple) else value


def theirs(publisher: Publisher, name: str) -> Answer:
    """The same from `generation_config.json`, or from the config."""
    generation = publisher.generation
    if name == CONTEXT:
        return _context(publisher)
    if name == WINDOWS:
        return _windows(publisher)
    if name == PLACEHOLDER:
        tokens = (getattr(publisher.config, key, None) for key in PLACEHOLDERS)
        return next((token for token in tokens if token is not None), UNKNOWN)
    has_file = (publisher.folder / "generation_config.json").is_file()
    if name == SAMPLING:
        return _sampling(generation) if has_file else UNKNOWN
    if name == "bos":
        bos = generation.bos_token_id
        if bos is None:
            return UNKNOWN
        # without a file, that of the config's class counts too
        return bos if has_file else Either(bos, lambda: None)
    if name == "suppressed":
        bad = generation.bad_words_ids or ()
        words = {word[0] for word in bad} - set(_ids(generation.eos_token_id))
        return sorted(words | set(generation.suppress_tokens or ()))
    fields = {
        "eos": "eos_token_id",
        "suppressed_first": "begin_suppress_tokens",
        "forced_last": "forced_eos_token_id",
        "start": "decoder_start_token_id",
        "forced_first": "forced_bos_token_id",
    }
    value = getattr(generation, fields[name], None)
    if name in ("eos", "suppressed_first"):
        return sorted(set(_ids(value)))
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _context(publisher: Publisher) -> Answer:
    """Length of the texts that a model with rotary positions was made for."""
    config = publisher.config.get_text_config()
    rotary: Any = getattr(config, "rope_parameters", None) or {}
    kinds = [rotary] if "rope_type" in rotary else rotary.values()
    plain = [kind.get("rope_type") in SAME_AT_ALL_LENGTHS for kind in kinds if kind]
    longest = getattr(config, "max_position_embeddings", None)
    if not plain or not all(plain) or not longest:
        return UNKNOWN
    return min(longest, publisher.most or longest)


def _windows(publisher: Publisher) -> Answer:
    """Tokens that each layer with attention caches; None for all."""
    config = publisher.config.get_text_config(decoder=True)
    if not hasattr(config, "layer_types") and not hasattr(config, "sliding_window"):
        return UNKNOWN
    layers = DynamicCache(config=config).layers
    return [getattr(own, "sliding_window", None) for own in layers if hasattr(own, "keys")]


def _sampling(generation: Any) -> dict[str, str]:
    values = {option: getattr(generation, option, None) for option in DEFAULTS}
    chosen = {
        option: DEFAULTS[option] if value is None else value for option, value in values.items()
    }
    if not generation.do_sample:
        penalty = chosen["repetition_penalty"]
        chosen = {**DEFAULTS, "temperature": 0.0, "repetition_penalty": penalty}
    return {option: f"{value:g}" for option, value in chosen.items()}


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


SPECIAL_TOKENS = Topic(name="special tokens", questions=questions, ours=ours, theirs=theirs)
