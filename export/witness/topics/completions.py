"""Greedy completions of a decoder, alone and in a batch of two lengths."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Beginning
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic

NEW_TOKENS = 8

PROMPTS = (16, 24)
"""Tokens of the prompts."""

NEAR_TIE = 1e-3
"""Gap between the two highest logits, relative to the largest, within which either may come
first."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """A batch of prompts from the certificate, for a bundle with the trained model's numbers."""
    manifest = bundled.manifest
    is_text = manifest.kind == "decoder" and not manifest.is_head
    if not is_text or not bundled.has_exact_numbers:
        return {}
    certificate = bundled.certificate
    plain = [n for n, probe in enumerate(certificate.probes) if not probe.features]
    longest = max((certificate.ids(number) for number in plain), key=len, default=[])
    room = manifest.context_length - NEW_TOKENS
    lengths = [min(length, room, len(longest)) for length in PROMPTS]
    if min(lengths) < 1:
        return {}
    first, second = lengths
    return {"a batch of two": [longest[:first], longest[len(longest) - second :]]}


def ours(bundled: Bundled, prompts: list[list[int]]) -> Answer:
    """Tokens of the bundle, with its cache."""
    completions = bundled.model.generate(prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    return [[int(token) for token in completion.tokens] for completion in completions]


@torch.inference_mode()
def theirs(publisher: Publisher, prompts: list[list[int]]) -> Answer:
    """Tokens of `generate`, each prompt alone, up to a near tie."""
    return [_greedy(publisher.model, prompt) for prompt in prompts]


def _greedy(model: Any, prompt: list[int]) -> Beginning:
    # settings that are left out come from the model, whose samplers and penalties are not asked for
    plain = GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1, pad_token_id=0,
        repetition_penalty=1.0, no_repeat_ngram_size=0,
        eos_token_id=-1,  # none ends a text, as with `ignore_eos`; `min_new_tokens` would avoid it
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=plain)
    tokens = Beginning()
    for logits, token in zip(output.logits, output.sequences[0, len(prompt) :], strict=True):
        best, next_best = logits[0].float().topk(2).values
        if best - next_best < NEAR_TIE * logits[logits.isfinite()].abs().max():
            break
        tokens.append(int(token))
    return tokens


COMPLETIONS = Topic(name="completions", questions=questions, ours=ours, theirs=theirs)
