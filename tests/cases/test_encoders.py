from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import Case, Variant, encoders, image_encoders, pairs, readers
from tests.cases.laws import Law, answers_are_those_of_another_library, applicable
from tests.cases.run import Run, Runs
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.damaged_bundles import edit_json, put, reseal
from tests.tiny.decoders import GPT2
from tests.tiny.encoders import BERT, MARIAN

import ortolan
from ortolan.runtime import TokenizerError, open_bundle, verify
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.verification.certificate_files import read_certificate, write_certificate

CASES = (*encoders.CASES, *readers.CASES, *pairs.CASES, *image_encoders.CASES)

MORE = (*encoders.MORE, *readers.MORE, *pairs.MORE, *image_encoders.MORE)


@pytest.mark.parametrize(("case", "variant", "law"), applicable(CASES))
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_law(case: Case, variant: Variant, law: Law, run: Run) -> None:
    law(run)


@pytest.mark.parametrize(
    ("case", "variant", "law"),
    [row for row in applicable(MORE) if row.values[2] is answers_are_those_of_another_library],
)
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_answers(case: Case, variant: Variant, law: Law, run: Run) -> None:
    law(run)


# --- certificates -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [encoders.TAGS, readers.ANSWERS, pytest.param(readers.TOKENS, marks=pytest.mark.slow)],
    ids=lambda case: case.name,
)
def test_a_certificate_has_scores_and_others_fail(case: Case, runs: Runs, tmp_path: Path) -> None:
    report = verify(runs(case).bundle, device="cpu", isolate=False)
    assert report.surroundings is not None
    assert report.surroundings.scores > 1
    assert f"scores of {report.surroundings.scores} probes" in report.surroundings.summary
    if case is encoders.TAGS:
        other = put("surroundings", "scores", 0, "name 0", value=0.5)
        edit_json(runs(case).copied(tmp_path), "certificate.json", other)
        report = verify(tmp_path / "copy", device="cpu", isolate=False)
        assert report.verdict == "FAIL"
        assert "labels or their scores" in report.device_summary


def test_a_certificate_has_pixels(runs: Runs) -> None:
    report = verify(runs(image_encoders.VIT_LABELS).bundle, device="cpu", isolate=False)
    assert report.surroundings is not None
    assert report.surroundings.pixels > 0


def test_types_of_a_pair_change_its_score_and_are_in_the_certificate(
    runs: Runs, tmp_path: Path
) -> None:
    run = runs(pairs.RERANKED)
    ids = run.model.tokenizer.encode_pair("def f(", "return x")
    assert list(ids.types) == sorted(ids.types)
    (typed,) = run.model.classify([("def f(", "return x")])
    (untyped,) = run.model.classify([ids])
    assert abs(typed.score - untyped.score) > 1e-5
    assert len(run.model.classify(("def f(", "return x"))) == 2  # two texts, and no pair
    copy = run.copied(tmp_path)
    certificate = read_certificate(open_bundle(copy))
    assert certificate.types is not None
    assert set(certificate.types) == {0, 1}
    assert len(certificate.types) == len(certificate.token_ids)
    write_certificate(copy, replace(certificate, types=1 - certificate.types))
    reseal(copy)
    assert verify(copy, device="cpu", isolate=False).verdict == "FAIL"


@pytest.mark.slow
def test_a_blank_that_is_no_token_is_an_error(runs: Runs, tmp_path: Path) -> None:
    readers.BLANKS.write(tmp_path / "other", mask="[BLANK]")
    options = ortolan.ExportOptions(tokenizer=tmp_path / "other" / "tokenizer.json")
    ortolan.export(runs(readers.BLANKS).checkpoint, tmp_path / "bundle", options=options)
    with pytest.raises(TokenizerError, match="one of the tokens"):
        ortolan.load(tmp_path / "bundle", ortolan.Encoder).fill("w7 [BLANK]")


# --- attention maps -------------------------------------------------------------------------------


def maps_and_reference(
    architecture: str, values: dict[str, Any], folder: Path
) -> tuple[Path, Any, torch.Tensor]:
    """A bundle with maps, transformers' model of the same checkpoint, and the ids of `x = 1`."""
    encoders.write(architecture, values, encoders.of_lines, folder)
    options = ortolan.ExportOptions(attention_maps=True)
    ortolan.export(folder, folder / "bundle", options=options)
    model = EncoderCase(architecture, values).read(folder)
    return folder / "bundle", model, torch.tensor([encoders.of_lines().encode("x = 1").ids])


def assert_close(got: Any, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


GPT2_VALUES = GPT2 | {"vocab_size": 97, "n_layer": 1, "bos_token_id": 1, "eos_token_id": 2}
MARIAN_VALUES = MARIAN | {"encoder_layers": 1, "decoder_layers": 1}
MARIAN_VALUES |= {"vocab_size": 97, "decoder_vocab_size": 97}


@pytest.mark.parametrize(
    ("architecture", "values", "side"),
    [
        ("BertModel", BERT | encoders.ONE_LAYER, "encoder"),
        pytest.param("GPT2LMHeadModel", GPT2_VALUES, "decoder", marks=pytest.mark.slow),
    ],
    ids=["bert", "gpt2"],
)
def test_maps_of_a_text_equal_those_of_transformers(
    architecture: str, values: dict[str, Any], side: str, tmp_path: Path
) -> None:
    bundle, reference, ids = maps_and_reference(architecture, values, tmp_path)
    maps = attention_maps(bundle, "x = 1", threads=1)
    with torch.no_grad():
        expected = reference(ids, output_attentions=True).attentions
    assert list(maps.maps) == [f"{side}.{layer}.self" for layer in range(len(expected))]
    for got, shares in zip(maps.maps.values(), expected, strict=True):
        assert_close(got, shares[0])
    assert len(maps.keys[f"{side}.0.self"]) == expected[0].shape[-1]
    assert maps.queries[f"{side}.0.self"][0] == "<s>"


@pytest.mark.slow  # the numbers: tests/export/test_families.py
def test_maps_of_a_translation_name_source_and_target(tmp_path: Path) -> None:
    bundle, reference, ids = maps_and_reference("MarianMTModel", MARIAN_VALUES, tmp_path)
    maps = attention_maps(bundle, "x = 1", target=[5, 6, 2], threads=1)
    start = reference.config.decoder_start_token_id
    target = torch.tensor([[start, 5, 6]])
    with torch.no_grad():
        outputs = reference(ids, decoder_input_ids=target, output_attentions=True)
    assert_close(maps.maps["encoder.0.self"], outputs.encoder_attentions[0][0])
    assert_close(maps.maps["decoder.0.self"], outputs.decoder_attentions[0][0])
    assert_close(maps.maps["decoder.0.cross"], outputs.cross_attentions[0][0])
    five, six = map(encoders.of_lines().id_to_token, (5, 6))
    assert maps.queries["decoder.0.cross"] == (five, six, "</s>")
    assert maps.queries["decoder.0.self"][1:] == (five, six)
    assert maps.keys["decoder.0.cross"] == maps.keys["encoder.0.self"]
    written = reference.generate(ids, num_beams=1, do_sample=False, max_length=96)
    cross = attention_maps(bundle, "x = 1", threads=1).maps["decoder.0.cross"]
    with torch.no_grad():
        outputs = reference(ids, decoder_input_ids=written[:, :-1], output_attentions=True)
    assert_close(cross, outputs.cross_attentions[0][0])
