"""Greedy completions of prompts, or of sources: alone and in a batch of two lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Beginning, Either
from ortolan.export.witness.floats import UnansweredError
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.sources import Inputs, probe_source, publisher_inputs
from ortolan.export.witness.topic import Topic
from ortolan.runtime.bundle.text_source import TextSource

NEW_TOKENS = 8

PROMPTS = (16, 24)
"""Tokens of the prompts."""

NEAR_TIE = 1e-3
"""Gap between the two highest logits, relative to the largest, within which either may come
first."""

TOKENS = (
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id"),
)
"""Settings of `generate` that a bundle follows without being told."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Prompts or sources from the certificate, for a bundle with the trained model's numbers."""
    manifest = bundled.manifest
    if not manifest.model_kind.has_decoder or manifest.is_head or not bundled.has_exact_numbers:
        return {}
    texts = [text for text in _texts(bundled) if text]
    longest = max(texts, key=len, default=[])
    room = manifest.context_length - NEW_TOKENS
    if isinstance(manifest.source, TextSource):
        room = len(longest) if manifest.context_length > NEW_TOKENS else 0
    lengths = [min(length, room, len(longest)) for length in PROMPTS]
    if min(lengths) < 1:
        return {}
    first, second = lengths
    prompts = [longest[:first], longest[len(longest) - second :]]
    return {"alone": prompts[:1], "a batch of two": prompts}


def _texts(bundled: Bundled) -> Sequence[list[int]]:
    """The token ids that the certificate's probes begin with."""
    certificate, source = bundled.reference, bundled.manifest.source
    if isinstance(source, TextSource):
        return [probe_source(bundled, number) for number in range(len(certificate.probes))]
    plain = [n for n, probe in enumerate(certificate.probes) if not probe.features]
    return [certificate.ids(number) for number in plain] if source is None else []


def ours(bundled: Bundled, prompts: list[list[int]]) -> Answer:
    """Tokens of the bundle, with its cache."""
    completions = bundled.model.generate(prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    return [[int(token) for token in completion.tokens] for completion in completions]


def theirs(publisher: Publisher, prompts: list[list[int]]) -> Answer:
    """Tokens of `generate`, each prompt alone, up to a near tie; with or without its cache.

    The cache of some types, such as Moshi, computes other logits than their forward pass.
    """

    def tokens(*, use_cache: bool) -> list[Beginning]:
        inputs = [publisher_inputs(publisher, prompt) for prompt in prompts]
        return [greedy(publisher, each, use_cache=use_cache) for each in inputs]

    return Either(tokens(use_cache=True), lambda: tokens(use_cache=False))


@torch.inference_mode()
def greedy(
    publisher: Publisher, inputs: Inputs, new_tokens: int = NEW_TOKENS, *, use_cache: bool = True
) -> Beginning:
    """The most probable tokens after a prompt or a source, up to a near tie."""
    model, generation = publisher.model, publisher.generation
    if publisher.rounding:
        raise UnansweredError("its weights are rounded as transformers loads them")
    plain = GenerationConfig(
        **{name: getattr(generation, name, None) for name in TOKENS},
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0,
        eos_token_id=-1,  # none ends a text, as with `ignore_eos`; `min_new_tokens` would avoid it
        return_dict_in_generate=True, output_scores=True,
        # transformers makes a cache for as many layers as the encoder has
        use_cache=use_cache and not model.config.is_encoder_decoder,
    )  # fmt: skip
    if (first := publisher.first_position) and not model.config.is_encoder_decoder:
        # `generate` counts from 0, and the model itself from here
        inputs = {**inputs, "position_ids": first + torch.arange(inputs["input_ids"].numel())[None]}
    # which `generate` would take other settings from, such as penalties
    model.generation_config = plain
    output = model.generate(**inputs, generation_config=plain)
    tokens = Beginning()
    for scores, token in zip(
        output.scores, output.sequences[0, -len(output.scores) :], strict=True
    ):
        best, next_best = scores[0].float().topk(2).values
        if best - next_best < NEAR_TIE * scores[scores.isfinite()].abs().max():
            break
        tokens.append(int(token))
    return tokens


COMPLETIONS = Topic(name="completions", questions=questions, ours=ours, theirs=theirs)
