"""Answers of exported models, compared with transformers' model, tokenizer and choice of spans."""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.damaged_bundles import reseal
from tests.tiny.encoders import BERT, DISTILBERT
from tests.tiny.tokenizers import of_pairs
from tokenizers import Tokenizer, pre_tokenizers
from transformers.pipelines.document_question_answering import select_starts_ends

import ortolan
from ortolan.cli.answer import command
from ortolan.export.options import ExportOptions
from ortolan.runtime import BundleKindError, Encoder, InputError, TokenizerError, load, open_bundle
from ortolan.runtime.verification.replay import verify

SHORT = {"max_position_embeddings": 64}
SMALL = BERT | SHORT
PLAIN = {"type_vocab_size": 1, "pad_token_id": 0}
CASES = {
    "bert": EncoderCase("BertForQuestionAnswering", SMALL),
    "roberta": EncoderCase(
        "RobertaForQuestionAnswering", SMALL | PLAIN | {"model_type": "roberta"}
    ),
    "electra": EncoderCase("ElectraForQuestionAnswering", SMALL | {"model_type": "electra"}),
    "distilbert": EncoderCase("DistilBertForQuestionAnswering", DISTILBERT | SHORT),
}
WORDS = ("def", "main", "(x)", ":", "return", "x", "import", "os", "for", "in", "range", "print")


def words_tokenizer() -> Tokenizer:
    """A token per letter, in words."""
    tokenizer = of_pairs()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def pairs(count: int) -> list[tuple[str, str]]:
    """Random questions and contexts, of which most need several windows."""
    rng = random.Random(0)
    return [
        (" ".join(rng.choices(WORDS, k=3)), " ".join(rng.choices(WORDS, k=rng.randint(3, 80))))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a case, once, to `bundle` in the checkpoint."""

    @cache
    def export(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        CASES[name].reference().save_pretrained(folder)
        words_tokenizer().save(str(folder / "tokenizer.json"))
        ortolan.export(folder, folder / "bundle")
        return folder

    return export


def transformers_answers(
    folder: Path, longest: int, *, allow_none: bool
) -> Callable[[str, str], tuple[str, float, int, int]]:
    """The steps of the question answering pipeline of transformers 4."""
    fast: Any = transformers.PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<s>", cls_token="<s>"
    )
    auto: Any = transformers.AutoModelForQuestionAnswering
    model = auto.from_pretrained(folder).eval()
    has_types = getattr(model.config, "type_vocab_size", 1) > 1

    def answer(question: str, context: str) -> tuple[str, float, int, int]:
        encoded = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=longest,
            stride=min(128, longest // 2),
            return_overflowing_tokens=True,
        )
        best, null = ("", -1.0, 0, 0), 1e6
        for number, window in enumerate(encoded.encodings):
            inputs = {"input_ids": torch.tensor([window.ids])}
            if has_types:
                inputs["token_type_ids"] = torch.tensor([window.type_ids])
            with torch.no_grad():
                out = model(**inputs)
            masked = np.array([s != 1 for s in encoded.sequence_ids(number)])
            masked[np.array(window.ids) == tokenizer.cls_token_id] = False
            starts, ends, scores, null = select_starts_ends(
                out.start_logits.numpy(),
                out.end_logits.numpy(),
                masked[None],
                np.ones((1, len(window.ids)), bool),
                null,
                1,
                allow_none,
                15,
            )
            for first, last, score in zip(starts, ends, scores, strict=True):
                start = window.word_to_chars(window.token_to_word(int(first)), 1)[0]
                end = window.word_to_chars(window.token_to_word(int(last)), 1)[1]
                if score > best[1]:
                    best = (context[start:end], float(score), start, end)
        if allow_none and null > best[1]:
            return "", float(null), 0, 0
        return best

    return answer


@pytest.mark.parametrize("allow_none", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert" else pytest.mark.slow) for name in CASES]
)
def test_answers_are_those_of_transformers(
    name: str, allow_none: bool, checkpoint: Callable[[str], Path]
) -> None:
    model = load(checkpoint(name) / "bundle", Encoder, threads=1)
    reference = transformers_answers(
        checkpoint(name), model.manifest.context_length, allow_none=allow_none
    )
    for question, context in pairs(60):
        text, score, start, end = reference(question, context)
        answer = model.answer(question, context, allow_none=allow_none)
        assert (answer.text, answer.start, answer.end) == (text, start, end)
        assert answer.score == pytest.approx(score, abs=1e-4)
        assert answer.text == context[answer.start : answer.end]


def test_the_length_of_an_answer_is_limited(checkpoint: Callable[[str], Path]) -> None:
    model = load(checkpoint("bert") / "bundle", Encoder, threads=1)
    question, context = "x", "a b c d e f g"
    one = model.answer(question, context, max_answer_tokens=1)
    assert one.score <= model.answer(question, context).score
    assert len(one.text) == 1


def test_the_certificate_covers_the_head(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    bundle = checkpoint("bert") / "bundle"
    report = verify(bundle, exact=False, isolate=False)
    assert (report.verdict, report.output) == ("PASS", "spans")
    assert report.surroundings is not None
    assert report.surroundings.scores > 1

    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    weights = broken / open_bundle(bundle).manifest.weights[0]
    parameters = dict(CASES["bert"].read(checkpoint("bert")).named_parameters())
    head = parameters["qa_outputs.weight"].detach().numpy().astype("<f4")
    values = head.tobytes()
    data = weights.read_bytes()
    assert data.count(values) == 1
    weights.write_bytes(data.replace(values, (-head).tobytes()))
    reseal(broken)
    assert verify(broken, exact=False, isolate=False).verdict == "FAIL"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_bit_weights_answer(
    precision: Any, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    poor = ExportOptions(allow_poor=True)
    ortolan.export(checkpoint("bert"), tmp_path / "bundle", precision=precision, options=poor)
    report = verify(tmp_path / "bundle", isolate=False)
    assert report.verdict == "PASS"
    assert report.quality is not None
    assert (report.quality.mean_cosine or 0) > 1e-9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"question": " "}, "question must be a text"),
        ({"context": ""}, "context must be a text"),
        ({"context": [1, 2]}, "context must be a text"),
        ({"max_answer_tokens": 0}, "max_answer_tokens must be"),
        ({"stride": -1}, "stride must be"),
        ({"allow_none": 1}, "allow_none"),
    ],
)
def test_bad_arguments_are_rejected(
    change: dict[str, Any], words: str, checkpoint: Callable[[str], Path]
) -> None:
    model = load(checkpoint("bert") / "bundle", Encoder, threads=1)
    arguments: dict[str, Any] = {"question": "x", "context": "y"} | change
    with pytest.raises(InputError, match=words):
        model.answer(**arguments)


def test_a_question_without_room_is_an_error(checkpoint: Callable[[str], Path]) -> None:
    model = load(checkpoint("bert") / "bundle", Encoder, threads=1)
    with pytest.raises(TokenizerError, match="Shorten the question"):
        model.answer("x " * 60, "y")
    with pytest.raises(TokenizerError, match="lower stride"):
        model.answer("x", "y", stride=64)


def test_other_methods_name_the_command(checkpoint: Callable[[str], Path]) -> None:
    model = load(checkpoint("bert") / "bundle", Encoder, threads=1)
    with pytest.raises(BundleKindError, match="ortolan answer"):
        model.states("x")


def test_the_command_prints_the_answer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    bundle = checkpoint("bert") / "bundle"
    context = tmp_path / "context.txt"
    context.write_text("def main(x): return x")
    answer = load(bundle, Encoder).answer("x", context.read_text())

    words = [str(bundle), "x", "--context"]
    done = CliRunner().invoke(command, [*words, str(context), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"] == answer.text
    plain = CliRunner().invoke(command, [*words, "-"], input=context.read_text())
    assert plain.exit_code == 0, plain.output
    assert answer.text in plain.stdout
