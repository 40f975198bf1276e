"""What encoders of images or sounds return: scores of labels, embeddings, states and logits.

Where weights are rounded, the reference of the certificate is compared instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import ImageClassificationPipeline, ZeroShotImageClassificationPipeline

from ortolan.export.options import WitnessTopic
from ortolan.export.witness import media
from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.floats import UnansweredError
from ortolan.export.witness.layers import first_layer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.rounding import NEGLIGIBLE
from ortolan.export.witness.sources import kept_probes, picture, probe_source, publisher_inputs
from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.logits import kept, of_reference
from ortolan.export.witness.topics.media_inputs import pictures, sounds
from ortolan.runtime.bundle.folder import open_part
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.parts import TEXT
from ortolan.runtime.bundle.sound_sources import WaveSource
from ortolan.runtime.verification.certificate import Logits, Vectors

MOST_PICTURES = 3
"""Pictures with answers of their own; the others only differ in how they are read."""

FIND: Mapping[str, Callable[[Bundled], Mapping[str, Any]]] = {"images": pictures, "sounds": sounds}
"""Questions by medium."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to an encoder.

    Attributes:
        value: pixels or samples.
        kind: name of the bundle's kind of output.
        words: labels to choose from.
        row: of the certificate's reference, to compare with; None to ask the bundle itself.
        positions: of the rows that the certificate keeps.
        top_ids: ids of the logits that it keeps.
        embedding: of a text, from the certificate of its encoder; the value is then token ids.
    """

    value: Any
    kind: str
    words: Sequence[str] = ()
    row: slice | None = None
    positions: Sequence[int] = ()
    top_ids: Any = None
    embedding: Any = None


def questions(medium: str, bundled: Bundled) -> Mapping[str, Question]:
    """Media, or probes of the certificate where weights are rounded or images must fit."""
    manifest, source = bundled.manifest, bundled.reads
    if manifest.kind != "encoder" or source is None or source.medium != medium:
        return {}
    asked, kind = FIND[medium](bundled), manifest.output_kind.name
    whole = {name: own for name, own in asked.items() if _fits(bundled, own)}
    if not bundled.has_exact_numbers or not whole or bundled.first_layers is not None:
        return {**_probes(bundled, kind), **_texts(bundled)}
    found = {
        name: Question(value=own, kind=kind) for name, own in islice(whole.items(), MOST_PICTURES)
    }
    if manifest.texts is not None and open_part(bundled.bundle, "texts").manifest.tokenizer:
        name, own = next(iter(asked.items()))
        found[f"words for {name}"] = Question(value=own, kind=kind, words=media.LABELS)
    return found


def _fits(bundled: Bundled, value: Any) -> bool:
    """Whether an encoder reads a sound at once; images always."""
    return bool(value.dtype == np.uint8 or len(value) <= bundled.reads.samples)


def _probes(bundled: Bundled, kind: str) -> Mapping[str, Question]:
    """Probes of the certificate, with the rows that it keeps of each."""
    certificate, found = bundled.reference, {}
    reference = certificate.reference
    for number, _, positions, rows in kept_probes(certificate):
        value = probe_source(bundled, number)
        if isinstance(bundled.reads, PatchSource) and value.shape[1] == bundled.reads.patch:
            continue  # see known.ONE_COLUMN
        found[f"probe {number + 1}"] = Question(
            value=value,
            kind=kind,
            row=rows,
            positions=positions,
            top_ids=reference.top_ids[rows] if isinstance(reference, Logits) else None,
        )
    return found


def _texts(bundled: Bundled) -> Mapping[str, Question]:
    """Probes of the encoder of the texts that images are compared with."""
    if bundled.manifest.texts is None:
        return {}
    certificate = Bundled(bundled.bundle.path / TEXT).certificate
    reference = certificate.reference
    assert isinstance(reference, Vectors)
    return {
        f"a text of {probe.length} tokens": Question(
            value=certificate.ids(number), kind="embedding", embedding=reference.values[number]
        )
        for number, probe in enumerate(certificate.probes)
    }


def ours(bundled: Bundled, question: Question) -> Answer:
    """The answer of the bundle, or of the reference of its certificate."""
    if question.embedding is not None:
        return question.embedding
    if question.row is not None:
        reference, rows = bundled.reference.reference, question.row
        if isinstance(reference, Logits):
            return of_reference(reference, rows)
        return reference.values[rows]
    model, value, output = bundled.model, question.value, bundled.manifest.output_kind
    if question.words:
        return _named(model.classify_as(value, question.words)[0].scores.items())
    if output.scores is not None and not output.by_token:
        scores = model.classify(value)[0].scores
        return _named((label.partition(" (")[0], own) for label, own in scores.items())
    call = {"embedding": model.embed, "states": model.states}.get(question.kind, model.logits)
    return call(value)[0]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Question) -> Answer:
    """The same from the model of transformers and its pipelines."""
    if question.kind == "embedding" and publisher.has_sentence_files:
        raise UnansweredError("sentence-transformers is not asked about images and sounds")
    if question.words:
        return _chosen(publisher, question)
    model = publisher.stack
    if question.embedding is not None:
        output = model.get_text_features(input_ids=torch.tensor([question.value]))
        vectors = getattr(output, "pooler_output", output)
        return torch.nn.functional.normalize(vectors, dim=-1)[0].numpy()
    is_probe = question.row is not None
    inputs = dict(publisher_inputs(publisher, question.value, is_probe=is_probe))
    if hasattr(model, "logit_scale"):
        # a model of images and texts reads both
        inputs["input_ids"] = torch.tensor([[model.config.text_config.eos_token_id or 0]])
    output = model(**inputs)
    if question.kind == "embedding":
        vectors = output.get("image_embeds", output.get("pooler_output"))
        return vectors.numpy() if is_probe else vectors[0].numpy()
    if "logits" not in output:
        mask = inputs.get("pixel_attention_mask", torch.ones(output[0].shape[:2]))
        states = output.last_hidden_state[0][mask[0].bool()].numpy()
        return states[question.positions] if is_probe else states
    logits = output.logits.float()
    if not is_probe and logits.ndim == 2:
        run = ImageClassificationPipeline(model=model, image_processor=publisher.image_processor)
        found = run.postprocess({"logits": logits}, top_k=logits.shape[-1])
        return _named((own["label"].partition(" (")[0], own["score"]) for own in found)
    rows = logits.numpy() if logits.ndim == 2 else logits[0].numpy()
    if question.top_ids is not None:
        return kept(rows, {"positions": question.positions, "top_ids": question.top_ids})
    return rows


def explain(bundled: Bundled, publisher: Publisher, question: Question) -> str | None:
    """The first layer whose output differs, for pictures of one size and waves."""
    is_of_text = bool(question.words) or question.embedding is not None
    if is_of_text or not isinstance(bundled.reads, ImageSource | WaveSource):
        return None
    inputs = publisher_inputs(publisher, question.value, is_probe=question.row is not None)
    (values,) = inputs["pixel_values" if "pixel_values" in inputs else "input_values"]
    return first_layer(
        publisher,
        lambda: next(iter(publisher.stack(**inputs).values())),
        source=values,
        tolerance=NEGLIGIBLE,
    )


def _chosen(publisher: Publisher, question: Question) -> Answer:
    """Scores of words for a picture."""
    run = ZeroShotImageClassificationPipeline(
        model=publisher.model,
        tokenizer=publisher.tokenizer,
        image_processor=publisher.image_processor,
    )
    found = run(picture(publisher, question.value), candidate_labels=list(question.words))
    return _named((own["label"], own["score"]) for own in found)


def _named(scores: Any) -> Answer:
    """Scores in the order of their labels."""
    ordered = sorted(scores)
    return {
        "labels": [label for label, _ in ordered],
        "scores": np.array([score for _, score in ordered]),
    }


def _topic(name: WitnessTopic) -> Topic:
    ask = partial(questions, name)
    return Topic(
        name=name, questions=ask, ours=ours, theirs=theirs, tolerance=FLOAT32, explain=explain
    )


IMAGES, SOUNDS = _topic("images"), _topic("sounds")
