"""Prompts with pictures or sounds: their token ids, and what a decoder writes after them.

Log-probabilities of the first token tell apart vectors that lead to the same tokens.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ortolan.export.witness import media
from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Rough
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.completions import NEW_TOKENS, greedy
from ortolan.runtime.engine.pictures import FIRST
from ortolan.runtime.errors import ChatTemplateError

LIKELIEST = 8
"""Tokens whose log-probabilities are compared."""

KINDS = {"images": "image", "sounds": "audio"}
"""Keys of a part of a prompt, in transformers as in bundles."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Texts with one or two media, and a message with one, for a decoder that reads them."""
    features, tokenizer = bundled.manifest.features, bundled.tokenizer
    if features is None or tokenizer is None:
        return {}
    first, second, *_ = _media(bundled)
    wrapping, text = features.wrapping, media.TEXT
    placeholder = tokenizer.text_of(features.token) if wrapping is None else wrapping.marker
    question = {
        "kind": KINDS[bundled.manifest.media],
        "placeholder": placeholder,
        "new_tokens": NEW_TOKENS if bundled.has_exact_numbers else 0,
    }
    # a processor of sounds reads one for each text
    more = [" two: ", second] if question["kind"] == "image" else [text]
    asked = {"one, then a text": [first, text], "among texts": ["One: ", first, *more]}
    found: dict[str, Any] = {name: {**question, "parts": parts} for name, parts in asked.items()}
    with suppress(ChatTemplateError):
        if bundled.template:
            found["a message with one"] = {**question, "message": [first, text]}
    return found


def _media(bundled: Bundled) -> list[Any]:
    if bundled.manifest.media == "images":
        return [own for own in media.PICTURES.values() if own.shape[2:] == (3,)]
    return [media.sound(seconds, bundled.reads.rate) for seconds in (2.0, 5.0)]


def ours(bundled: Bundled, question: Mapping[str, Any]) -> Answer:
    """Ids of the prompt, and greedy tokens after it."""
    model, kind = bundled.model, question["kind"]
    if "parts" in question:
        prompt = [own if isinstance(own, str) else {kind: own} for own in question["parts"]]
    else:
        message = {"role": "user", "content": _content(kind, question["message"], with_value=True)}
        prompt = model._chat.question([message], {}).prompt
    (request,) = model._reader(bundled.tokenizer).prompts([prompt], {})
    features = bundled.manifest.features
    assert features is not None
    answer: Answer = {"prompt": [features.token if own >= FIRST else own for own in request.prompt]}
    if question["new_tokens"]:
        done = model.generate(
            prompt, max_new_tokens=question["new_tokens"], ignore_eos=True, logprobs=LIKELIEST
        )
        answer["tokens"] = list(done.tokens)
        answer["log-probabilities"] = np.array([own for _, own in done.logprobs[0].top])
    return answer


def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from the processor and `generate`."""
    processor, kind = publisher.processor, question["kind"]
    parts = question.get("parts") or question["message"]
    options: dict[str, Any] = {"return_tensors": "pt"}
    if "parts" in question:
        text = "".join(own if isinstance(own, str) else question["placeholder"] for own in parts)
    else:
        message = {"role": "user", "content": _content(kind, parts, with_value=False)}
        writer = processor if processor.chat_template else publisher.tokenizer
        text = writer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        options["add_special_tokens"] = False  # the template writes them
    values = [own for own in parts if not isinstance(own, str)]
    if kind == "image":
        from PIL import Image  # not among the packages of an export

        values = [[Image.fromarray(own) for own in values]]
    name = {"image": "images", "audio": "audio"}[kind]
    inputs = processor(text=[text], **{name: values}, **options)
    answer: Answer = {"prompt": inputs["input_ids"][0].tolist()}
    if question["new_tokens"]:
        answer["tokens"] = greedy(publisher, inputs, question["new_tokens"])
        with torch.inference_mode():
            logits = publisher.model(**inputs, use_cache=False).logits[0, -1].float()
        likeliest = logits.log_softmax(-1).topk(min(LIKELIEST, len(logits)))
        images = getattr(processor, "image_processor", None)
        is_exact = getattr(images, "backend", "pil") == "pil"  # torchvision resizes otherwise
        answer["log-probabilities"] = Rough(likeliest.values.numpy(), 0.0 if is_exact else math.inf)
    return answer


def _content(kind: str, parts: list[Any], *, with_value: bool) -> list[dict[str, Any]]:
    """The parts of a message."""
    return [
        {"type": "text", "text": own}
        if isinstance(own, str)
        else {"type": kind, **({kind: own} if with_value else {})}
        for own in parts
    ]


MEDIA_PROMPTS = Topic(name="media prompts", questions=questions, ours=ours, theirs=theirs)
