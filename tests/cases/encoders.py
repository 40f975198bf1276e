"""Encoders of texts and images, by what they are used for."""

import io
import json
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tests.cases import QUICK, Case, Command
from tests.modeling.tiny_encoders import ROBERTA, EncoderCase
from tests.runtime.damaged_bundles import put
from tests.tiny.decoders import VOCABULARY
from tests.tiny.encoders import BERT, DISTILBERT, MASKED, VIT
from tests.tiny.tokenizers import of_characters, of_texts, with_ends
from tokenizers import Tokenizer

from ortolan.cli.output import print_table
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import Reading
from ortolan.export.witness.topics.labels import theirs as scores_of
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import EmbeddingHead

ENCODES = frozenset({"encodes"})

SPECIAL = ("<x>", "[PAD]", "[CLS]", "[SEP]", "[UNK]")

ALONE = ("--threads", "1")
"""Options of a command that computes exactly what the model of a case does."""

NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]"}


def write(
    architecture: str,
    values: dict[str, Any],
    tokenizer: Callable[[], Tokenizer],
    folder: Path,
    **names: Any,
) -> None:
    """Write a random model; with names of tokens, a tokenizer that transformers opens."""
    EncoderCase(architecture, values).write(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    if names:
        fast: Any = transformers.PreTrainedTokenizerFast
        inputs = ["input_ids", "attention_mask"]
        fast(tokenizer_object=tokenizer(), model_input_names=inputs, **names).save_pretrained(
            folder
        )


def publisher_of(folder: Path) -> Publisher:
    """The other library, with the tokenizer as its file has it."""
    return Publisher(folder, kind="encoder").as_saved


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Rows as commands print them."""
    out = io.StringIO()
    with redirect_stdout(out):
        print_table(rows)
    return out.getvalue()


def as_json(**value: Any) -> str:
    """An object as commands print it."""
    return json.dumps(value | {"device": "cpu"}, indent=2) + "\n"


# --- labels ---------------------------------------------------------------------------------------

SINGLE, MULTI, REGRESSION = (
    {"problem_type": name}
    for name in ("single_label_classification", "multi_label_classification", "regression")
)
ONE: dict[str, Any] = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}

TEXTS = {
    "short": "w9 w12 w10",
    "long": "w20 w11 w30 w31 w32 w33 w34 w35",
    "one word": "w40",
}
PIXELS = {
    f"{seed}": np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    for seed in range(3)
}


def labels(count: int) -> dict[str, Any]:
    return {"id2label": {number: f"name {number}" for number in range(count)}}


def narrow(model_type: str, **more: Any) -> dict[str, Any]:
    return BERT | {"model_type": model_type} | MASKED[model_type][1] | more


def write_classifier(values: dict[str, Any], folder: Path) -> None:
    kind = values["model_type"]
    if kind == "vit":
        EncoderCase("ViTForImageClassification", values).write(folder)
        size = {"height": 8, "width": 8}
        transformers.ViTImageProcessor(size=size).save_pretrained(str(folder))
        return
    classes = {"distilbert": "DistilBert", **{name: own for name, (own, _) in MASKED.items()}}
    architecture = f"{classes[kind]}ForSequenceClassification"
    write(architecture, values, partial(of_texts, SPECIAL, VOCABULARY), folder, **NAMES)


def scores(model: Any, inputs: Sequence[Any]) -> list[dict[str, float]]:
    return [dict(result.scores) for result in model.classify(list(inputs))]


def by_classification(folder: Path, inputs: Sequence[Any]) -> list[dict[str, float]]:
    if isinstance(inputs[0], str):
        publisher = publisher_of(folder)
        return [scores_of(publisher, Reading(texts=(text,))) for text in inputs]
    make: Any = transformers.pipeline
    images = [Image.fromarray(pixels) for pixels in inputs]
    found = make("image-classification", model=str(folder), device="cpu")(images, top_k=1000)
    return [{one["label"]: one["score"] for one in each} for each in found]


def classifier(name: str, values: dict[str, Any], **more: Any) -> Case:
    return Case(
        **{
            "name": name,
            "write": partial(write_classifier, values),
            "inputs": PIXELS if values["model_type"] == "vit" else TEXTS,
            "call": scores,
            "reference": by_classification,
            "features": ENCODES,
            **more,
        }
    )


def tags_of(model: Any, texts: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Texts and their likeliest labels, as a command prints them."""
    return [
        {
            "input": text,
            "label": result.label,
            "probability": result.score,
            "probabilities": dict(islice(result.scores.items(), most)),
        }
        for text, result in zip(texts, model.classify(list(texts)), strict=True)
    ]


TAGS = classifier(
    "tags",
    DISTILBERT | labels(6) | MULTI,
    variants=(QUICK,),
    commands={
        "every tag": Command(
            words=("classify", "w9 w12", *ALONE),
            written=lambda model: table(
                [(name, f"{score:6.1%}") for name, score in scores(model, ["w9 w12"])[0].items()]
            ),
        ),
        "two tags of each text as JSON": Command(
            words=("classify", "w9 w12", "-", "--top", "2", "--json", *ALONE),
            stdin=b"w40\n\nw20",
            written=lambda model: as_json(results=tags_of(model, ("w9 w12", "w40", "w20"), 2)),
        ),
    },
    edits={
        "softmax": put("output", "kind", value="labels"),
        "no function": put("output", "kind", value="scores"),
        "another order": lambda manifest: manifest["output"]["labels"].reverse(),
    },
    refusals={
        "to fill": lambda model: model.fill("w7 [MASK]"),
        "to answer": lambda model: model.answer("w7", "w8"),
        "to say what is entailed": lambda model: model.classify_as("w7", ["w8"]),
        "to label tokens": lambda model: model.classify_tokens("w7"),
        "to embed": lambda model: model.embed("w7"),
        "a long text": lambda model: model.classify(["w7", "w9 " * 100]),
    },
)
REGRESSED = classifier(
    "regression",
    BERT | ONE | REGRESSION,
    variants=(QUICK,),
    commands={
        "a score": Command(
            words=("classify", "w9", *ALONE),
            written=lambda model: f"LABEL_0  {model.classify('w9')[0].score:9.4f}\n",
        )
    },
    edits={"sigmoid": put("output", "kind", value="labels")},
)
IMAGE_TAGS = classifier("image tags", VIT | labels(5) | MULTI, variants=(QUICK,))

MORE_LABELS = {
    "bert": BERT | labels(3),
    "bert single": BERT | ONE,
    "bert one tag": BERT | ONE | MULTI,
    "bert function": BERT | labels(4) | {"function_to_apply": "softmax"},
    "roberta regressions": ROBERTA | labels(4) | REGRESSION,
    "distilbert regression": DISTILBERT | ONE | REGRESSION,
    "albert regression": narrow("albert") | ONE | REGRESSION,
    "electra tags": narrow("electra") | labels(7) | MULTI,
    "mpnet regression": narrow("mpnet") | ONE | REGRESSION,
    "modernbert tags": narrow("modernbert") | labels(5) | MULTI,
    "modernbert single": narrow("modernbert", classifier_pooling="mean") | ONE,
    "eurobert regressions": narrow("eurobert") | labels(3) | REGRESSION,
    "roformer tags": narrow("roformer") | labels(9) | MULTI,
    "big_bird tags": narrow("big_bird") | labels(4) | MULTI,
    "nomic_bert tags": narrow("nomic_bert") | labels(4) | MULTI,
    "images": VIT | labels(10),
    "images regressions": VIT | labels(3) | REGRESSION,
}

# --- vectors --------------------------------------------------------------------------------------

ONE_LAYER = {"num_hidden_layers": 1, "vocab_size": 97}

LINES = {
    "short": "def main(",
    "one letter": "a",
    "long": "for x in range(10): print(x)",
    "words": "import os",
}


def of_lines() -> Tokenizer:
    return with_ends(of_characters(), "<s> $A </s>")


def last_states(folder: Path, texts: Sequence[str]) -> list[torch.Tensor]:
    """States of the texts by transformers."""
    auto: Any = transformers.AutoModel
    model = auto.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return [
            model(torch.tensor([of_lines().encode(text).ids])).last_hidden_state[0]
            for text in texts
        ]


def write_embedder(folder: Path) -> None:
    write("BertModel", BERT | ONE_LAYER, of_lines, folder)
    write_sentence_head(folder, EmbeddingHead(pooling=("mean",), normalised=True), 32)


def by_mean(folder: Path, texts: Sequence[str]) -> list[Any]:
    means = [rows.mean(0) for rows in last_states(folder, texts)]
    return [(mean / mean.norm()).numpy() for mean in means]


def vectors(model: Any, texts: Sequence[str]) -> list[Any]:
    return [*model.embed(list(texts))]


EMBEDDING = Case(
    name="embedding",
    commands={
        "a line per text": Command(
            words=("embed", "a", "-", *ALONE),
            stdin=b"def f(",
            written=lambda model: "".join(
                " ".join(f"{value:.6g}" for value in vector) + "\n"
                for vector in vectors(model, ("a", "def f("))
            ),
        ),
        "as JSON": Command(
            words=("embed", "a", "--json", *ALONE),
            written=lambda model: as_json(
                width=32, results=[{"input": "a", "embedding": vectors(model, "a")[0].tolist()}]
            ),
        ),
    },
    write=write_embedder,
    inputs=LINES,
    call=vectors,
    reference=by_mean,
    features=ENCODES,
    variants=(QUICK,),
)
STATES = Case(
    name="states",
    write=partial(
        write, "DistilBertModel", DISTILBERT | {"vocab_size": 97, "n_layers": 1}, of_lines
    ),
    inputs=LINES,
    call=lambda model, texts: [*model.states(list(texts))],
    reference=lambda folder, texts: [rows.numpy() for rows in last_states(folder, texts)],
    features=ENCODES,
    variants=(QUICK,),
)

CASES = (TAGS, REGRESSED, IMAGE_TAGS, EMBEDDING, STATES)

MORE = tuple(classifier(f"labels {name}", values) for name, values in MORE_LABELS.items())
"""Cases whose answers alone are compared."""
