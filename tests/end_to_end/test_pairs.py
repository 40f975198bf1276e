"""Classifiers of pairs of texts, such as rerankers, from a checkpoint to scores."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.damaged_bundles import reseal
from tests.tiny.encoders import BERT
from tests.tiny.tokenizers import of_pairs

import ortolan
from ortolan.runtime import open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate, write_certificate
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

SMALL = BERT | {"num_hidden_layers": 1, "max_position_embeddings": 40}
RANKED = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
PLAIN = {"type_vocab_size": 1, "pad_token_id": 0}

CASES = {
    "roberta": EncoderCase(
        "RobertaForSequenceClassification", SMALL | RANKED | PLAIN | {"model_type": "roberta"}
    ),
    "xlm-roberta": EncoderCase(
        "XLMRobertaForSequenceClassification",
        SMALL | RANKED | PLAIN | {"model_type": "xlm-roberta"},
    ),
    "bert": EncoderCase("BertForSequenceClassification", SMALL | RANKED),
    "electra": EncoderCase(
        "ElectraForSequenceClassification",
        SMALL | RANKED | {"model_type": "electra", "embedding_size": SMALL["hidden_size"]},
    ),
}
TYPED = ("bert", "electra")
"""Cases whose models tell the texts of a pair apart."""

PAIRS = [
    ("def f(", "return x"),
    ("def f(", "import os, sys"),
    ("a", "b"),
    ("", "x"),
    ("def main(", "for x in range(10): print(x)"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a case, once, to `bundle` in the checkpoint."""

    @cache
    def export(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        CASES[name].reference().save_pretrained(folder)
        of_pairs().save(str(folder / "tokenizer.json"))
        ortolan.export(folder, folder / "bundle")
        return folder

    return export


def scores(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Those of transformers, with its tokenizer."""
    fast: Any = transformers.PreTrainedTokenizerFast
    library = fast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<s>")
    auto: Any = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder).eval()
    most = ortolan.load(folder / "bundle", ortolan.Encoder).manifest.context_length
    values = []
    for first, second in pairs:
        inputs = library(
            first,
            second,
            truncation=True,
            max_length=most,
            return_tensors="pt",
            return_token_type_ids=model.config.type_vocab_size > 1,
        )
        with torch.no_grad():
            logits = model(**inputs).logits
        values.append(float(torch.sigmoid(logits[0, 0])))
    return values


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert" else pytest.mark.slow) for name in CASES]
)
def test_scores_of_pairs_are_those_of_transformers(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(name)
    model = ortolan.load(folder / "bundle", ortolan.Encoder, threads=1)
    pairs = [*PAIRS, ("def main(x): " * 9, "return " * 20)]
    expected = scores(folder, pairs)
    got = [one.score for one in model.classify(pairs, truncate=True)]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert len(set(np.round(got, 6))) > 3
    with model.serve() as service:
        served = [one.score for one in service.classify(pairs, truncate=True).result(30)]
    np.testing.assert_allclose(served, got, atol=1e-6)
    with pytest.raises(ortolan.ContextLengthError, match="input 1"):
        model.classify([pairs[0], pairs[-1]])


def test_a_tuple_alone_is_a_batch(checkpoint: Callable[[str], Path]) -> None:
    model = ortolan.load(checkpoint("roberta") / "bundle", ortolan.Encoder, threads=1)
    assert len(model.classify(("def f(", "return x"))) == 2
    assert len(model.classify([("def f(", "return x")])) == 1


@pytest.mark.parametrize("name", TYPED)
def test_types_change_scores_and_are_part_of_the_certificate(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    bundle = open_bundle(checkpoint(name) / "bundle")
    certificate = read_certificate(bundle)
    assert certificate.types is not None
    assert set(certificate.types) == {0, 1}
    assert len(certificate.types) == len(certificate.token_ids)
    model = ortolan.load(bundle.path, ortolan.Encoder, threads=1)
    assert model.tokenizer is not None
    ids, types = model.tokenizer.encode_typed_pair("def f(", "return x")
    assert types == [0] * types.count(0) + [1] * types.count(1)
    (typed,) = model.classify([("def f(", "return x")])
    (untyped,) = model.classify([ids])
    assert abs(typed.score - untyped.score) > 1e-5
    assert verify(bundle.path, exact=False, isolate=False).verdict == "PASS"


def test_a_certificate_with_other_types_fails(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("bert") / "bundle", tmp_path / "bundle")
    bundle = open_bundle(folder)
    certificate = read_certificate(bundle)
    assert certificate.types is not None
    write_certificate(folder, replace(certificate, types=1 - certificate.types))
    reseal(folder)
    assert verify(folder, exact=False, isolate=False).verdict == "FAIL"
