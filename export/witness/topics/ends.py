"""Special tokens: where a text begins, where it ends, and what is never chosen."""

from collections.abc import Mapping
from typing import Any

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """The fields that `generate` reads, for a model that generates."""
    manifest = bundled.manifest
    if not manifest.model_kind.has_decoder:
        return {}
    names = ["eos", "suppressed", "suppressed_first", "forced_last"]
    if manifest.model_kind.has_encoder:
        names += ["start", "forced_first"]
    return {name: name for name in names}


def ours(bundled: Bundled, name: str) -> Answer:
    """A field of the manifest."""
    value = getattr(bundled.manifest.tokens, name)
    return sorted(value) if isinstance(value, tuple) else value


def theirs(publisher: Publisher, name: str) -> Answer:
    """The same from `generation_config.json`, or from the config."""
    generation = publisher.generation
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


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


ENDS = Topic(name="special tokens", questions=questions, ours=ours, theirs=theirs)
