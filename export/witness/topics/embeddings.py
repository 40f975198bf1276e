"""Embeddings of texts, or states of their tokens: pooling, prompts, length 1, and the limit."""

from collections.abc import Mapping
from typing import Any

import torch

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.export.witness.topics.outputs import NUMBERS
from ortolan.runtime.bundle.text_source import TextSource

MOST_TOKENS = 512
"""A text that fills a longer context takes too long in PyTorch."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Texts, and one with each prompt of the model, or without any."""
    source, output = bundled.manifest.source, bundled.output
    if output not in ("embedding", "states") or not isinstance(source, TextSource):
        return {}
    readings = bundled.readings(most=MOST_TOKENS)
    asked: dict[str, Any] = {name: (output, reading, None) for name, reading in readings.items()}
    first = next(iter(readings.values()))
    prompts = {f"the prompt {name!r}": name for name in source.prompts}
    if source.default_prompt:
        prompts["no prompt"] = ""
    if output == "embedding":
        asked |= {name: (output, first, prompt) for name, prompt in prompts.items()}
    return asked


def ours(bundled: Bundled, question: Any) -> Answer:
    """A vector, or one per token, and the model's prompts."""
    output, reading, prompt = question
    source = bundled.manifest.source
    assert isinstance(source, TextSource)
    if output == "states":
        (vectors,) = bundled.model.states([reading.value], truncate=True)
    else:
        (vectors,) = bundled.model.embed([reading.value], prompt=prompt, truncate=True)
    return {"vectors": vectors, "prompts": _named(source.prompts)}


@torch.inference_mode()
def theirs(publisher: Publisher, question: Any) -> Answer:
    """The same from sentence-transformers, or from a model of transformers."""
    output, reading, prompt = question
    truncation = publisher.truncation(reading)
    if publisher.has_sentence_files and output == "embedding":
        model = publisher.sentences
        named = {"prompt_name": prompt} if prompt else {"prompt": prompt}
        vectors = model.encode(reading.value, **named, show_progress_bar=False)
        return {"vectors": vectors, "prompts": _named(model.prompts)}
    encoded = publisher.tokenizer(*reading.texts, **truncation, return_tensors="pt")
    if reading.is_padded:
        encoded.pop("attention_mask", None)  # such models attend to padding
    vectors = NUMBERS[output](publisher.model(**encoded))[0].float().numpy()
    return {"vectors": vectors, "prompts": {}}


def _named(prompts: Mapping[str, str]) -> Mapping[str, str]:
    """Prompts; sentence-transformers adds empty ones for queries and documents."""
    return {name: text for name, text in prompts.items() if text}


EMBEDDINGS = Topic(
    name="embeddings", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs)
)
