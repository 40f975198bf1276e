from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.export import tiny_models

from ortolan.export import streamed
from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.proof.certificate import certify, thresholds
from ortolan.export.proof.probes import make_probes
from ortolan.export.proof.reference import TOP_K
from ortolan.export.source import open_exportable
from ortolan.modeling import DecoderModel
from ortolan.runtime.verification.certificate import Certificate, Logits
from ortolan.runtime.verification.comparison import summarize

CONFIGS = {
    config.__name__: config
    for config in (
        tiny_models.llama,
        tiny_models.gpt2,
        tiny_models.mistral,
        tiny_models.qwen2,
        tiny_models.post_norm,
    )
}


def opened(source: DecoderModel | Path, max_context: int | None = None) -> Exportable:
    return open_exportable(source, tokenizer=None, max_context=max_context)


def certified(module: DecoderModel, max_context: int | None = None) -> Certificate:
    source = opened(module, max_context)
    return certify(source, make_probes(source), thresholds=thresholds("fp32"))


def logits_of(certificate: Certificate) -> Logits:
    assert isinstance(certificate.reference, Logits)
    return certificate.reference


def assert_is_what_the_module_computes(certificate: Certificate, module: DecoderModel) -> None:
    offset, kept = 0, logits_of(certificate)
    for probe in certificate.probes:
        part = slice(offset, offset + probe.length)
        ids = torch.from_numpy(certificate.token_ids[part].astype(np.int64))
        with torch.inference_mode():
            logits = module(ids[None])[0].numpy()
        expected = summarize(logits, TOP_K)
        chosen = np.take_along_axis(logits, kept.top_ids[part].astype(np.int64), -1)
        # The values at the ids, in the order of the ids: ties may be sorted either way.
        np.testing.assert_allclose(kept.top_logits[part], chosen, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(kept.top_logits[part], expected.top_logits, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(kept.log_sum_exp[part], expected.log_sum_exp, rtol=1e-5)
        followed = np.take_along_axis(logits[:-1], ids[1:, None].numpy(), -1)[:, 0]
        assert kept.next_logits is not None
        np.testing.assert_allclose(kept.next_logits[part][:-1], followed, atol=2e-5)
        offset += probe.length
    assert offset == len(certificate.token_ids)


@pytest.mark.parametrize("name", CONFIGS)
def test_reference_is_what_the_module_computes(name: str) -> None:
    module = tiny_models.decoder(CONFIGS[name]())
    certificate = certified(module)
    assert logits_of(certificate).top_ids.shape == (len(certificate.token_ids), TOP_K)
    assert_is_what_the_module_computes(certificate, module)


@pytest.mark.parametrize("rows", [1, 10, 96, 97])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_chunks_of_the_vocabulary_give_the_same_reference(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tiny_models.decoder(CONFIGS[name]())
    whole = certified(module)
    monkeypatch.setattr(streamed, "READ_BYTES", rows * 4 * 32)
    chunked = certified(module)
    assert_is_what_the_module_computes(chunked, module)
    one, other = logits_of(chunked), logits_of(whole)
    assert (one.top_ids == other.top_ids).mean() > 0.999  # rounding may swap near ties
    np.testing.assert_allclose(one.log_sum_exp, other.log_sum_exp, rtol=1e-6)


def test_of_equal_logits_the_lower_id_comes_first_across_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    assert module.head is not None
    module.head.weight.data[50] = module.head.weight.data[3]
    monkeypatch.setattr(streamed, "READ_BYTES", 4 * 32)
    for row in logits_of(certified(module)).top_ids.tolist():
        assert (3 in row) or (50 not in row)
        if 3 in row and 50 in row:
            assert row.index(50) == row.index(3) + 1


@pytest.mark.parametrize("rows", [1, 50, 4096])
def test_of_more_equal_logits_than_are_kept_the_lowest_ids_are(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    assert module.head is not None
    module.head.weight.data[10:90] = 0
    monkeypatch.setattr(streamed, "READ_BYTES", rows * 4 * 32)
    for row in logits_of(certified(module)).top_ids.tolist():
        equal = [token for token in row if 10 <= token < 90]
        assert len(equal) > TOP_K / 3
        assert equal == list(range(10, 10 + len(equal)))


def test_vocabulary_smaller_than_the_kept_logits_is_kept_whole() -> None:
    module = tiny_models.decoder(replace(tiny_models.llama(), vocab_size=9))
    made = logits_of(certified(module))
    assert np.sort(made.top_ids, axis=-1).tolist() == [list(range(9))] * len(made.top_ids)


def test_shorter_context_takes_the_first_rows_of_a_learned_table() -> None:
    module = tiny_models.decoder(tiny_models.gpt2())
    certificate = certified(module, 100)
    assert max(probe.length for probe in certificate.probes) == 100
    assert_is_what_the_module_computes(certificate, module)


def test_longer_context_of_stretched_positions_turns_every_token_differently() -> None:
    module = tiny_models.decoder(tiny_models.qwen2())
    certificate = certified(module, 400)
    assert_is_what_the_module_computes(certificate, tiny_models.reference(module, 400))


def test_checkpoint_and_module_have_the_same_reference(checkpoint: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    probes = make_probes(opened(module))
    bounds = thresholds("fp16")
    read, live = (
        certify(opened(source), probes, thresholds=bounds) for source in (checkpoint, module)
    )
    np.testing.assert_array_equal(logits_of(read).top_logits, logits_of(live).top_logits)
    assert read.thresholds == bounds != thresholds("fp32")


def test_half_precision_weights_are_computed_with_in_float32() -> None:
    module = tiny_models.decoder(tiny_models.llama(), torch.bfloat16)
    certificate = certified(module)
    # `module.float()` would not do: its rotary tables have been rounded as well.
    assert_is_what_the_module_computes(certificate, tiny_models.reference(module, None))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_an_error(value: float) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    module.blocks[1].get_parameter("attention.out.weight").data[3, 3] = value
    with pytest.raises(ExportError, match="logits that are not finite"):
        certified(module)


def test_progress_is_told_of_every_matrix() -> None:
    module = tiny_models.decoder(tiny_models.llama())
    told: list[tuple[int, int]] = []
    source = opened(module)
    certify(
        source,
        make_probes(source),
        thresholds=thresholds("fp32"),
        progress=lambda step, done, total: told.append((done, total)),
    )
    done, total = zip(*told, strict=True)
    assert done == tuple(sorted(done))
    assert set(total) == {12}
    assert done[-1] == 12
