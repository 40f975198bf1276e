"""Encoder-decoders against Hugging Face transformers: the same checkpoint, the same logits."""

from pathlib import Path

import pytest
import torch
from tests.modeling.steps import after, garbage, in_steps
from tests.modeling.tiny_encoders import SEQ2SEQ, EncoderCase, ragged, reference_output
from tests.modeling.tiny_models import assert_same_logits
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.modeling import EncoderDecoderModel, load, save
from ortolan.modeling.families import family_of
from ortolan.modeling.layers.cache import CrossCache, empty_cache

SOURCES = ragged(13, 1, 7, 20)

TARGETS = ragged(18, 18, 18, 18, seed=1).ids.clamp(5, 80)

CHUNKS = (6, 1, 4)
"""How the first tokens of one text enter the cache; steps of one token follow."""


def expected_logits(reference: PreTrainedModel) -> Tensor:
    return reference_output(
        reference,
        input_ids=SOURCES.ids,
        attention_mask=SOURCES.mask,
        decoder_input_ids=TARGETS,
        decoder_attention_mask=torch.ones_like(TARGETS),
    )


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_checkpoint_of_transformers_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    reference = SEQ2SEQ[name].write(tmp_path)
    module = load(tmp_path, EncoderDecoderModel)
    expected = expected_logits(reference)
    with torch.inference_mode():
        assert_same_logits(module(SOURCES.ids, TARGETS, SOURCES.lengths), expected)
        assert_same_logits(cached_logits(module), expected)
        assert_same_logits(chunked_logits(module, 2), expected[2:3])
    assert float(expected.std()) > 0.1, "logits that do not discriminate"


def cached_logits(module: EncoderDecoderModel) -> Tensor:
    """Logits of all texts, token by token after a cache, their sources encoded once."""
    batch, length = TARGETS.shape
    cache = empty_cache(module.config.decoder, batch=batch, capacity=length + 3)
    source = module.source(SOURCES.ids, SOURCES.lengths)
    return in_steps(module, TARGETS, [1] * length, cache, source)


def chunked_logits(module: EncoderDecoderModel, row: int) -> Tensor:
    """Logits of one text, in chunks, given its source without padding."""
    valid, ids = int(SOURCES.lengths[row]), TARGETS[row : row + 1]
    source = CrossCache(module.cross(module.encode(SOURCES.ids[row : row + 1, :valid])))
    cache = empty_cache(module.config.decoder, batch=1, capacity=ids.shape[1])
    sizes = [*CHUNKS, *[1] * (ids.shape[1] - sum(CHUNKS))]
    return in_steps(module, ids, sizes, cache, source)


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_a_ragged_prompt_of_the_decoder_equals_its_rows_alone(name: str, tmp_path: Path) -> None:
    SEQ2SEQ[name].write(tmp_path)
    module = load(tmp_path, EncoderDecoderModel)
    lengths = (5, 9, 2, 7)
    with torch.inference_mode():
        whole = module(SOURCES.ids, TARGETS, SOURCES.lengths)
        source = module.source(SOURCES.ids, SOURCES.lengths)
        cache = garbage(module.config.decoder, batch=4, capacity=16)
        prompt, cache = module.step(TARGETS[:, :9], after(*lengths), cache, source)
        new = TARGETS.gather(1, torch.tensor(lengths)[:, None])
        grown = after(*(length + 1 for length in lengths))
        last, _ = module.step(new, grown, cache, source)
        asked = torch.tensor(lengths)[:, None] - 1
        ends, _ = module.step(
            TARGETS[:, :9],
            after(*lengths),
            garbage(module.config.decoder, batch=4, capacity=16),
            source,
            asked,
        )
    for row, length in enumerate(lengths):
        assert_same_logits(prompt[row, :length], whole[row, :length])
        assert_same_logits(last[row, 0], whole[row, length])
        assert_same_logits(ends[row, 0], whole[row, length - 1])


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_several_texts_of_a_source_need_it_once(name: str, tmp_path: Path) -> None:
    # As in a beam search: 3 continuations of each source, which is not copied for them.
    SEQ2SEQ[name].write(tmp_path)
    module = load(tmp_path, EncoderDecoderModel)
    texts = ragged(*[6] * 12, seed=2).ids.clamp(max=80)
    with torch.inference_mode():
        source = module.source(SOURCES.ids, SOURCES.lengths)
        repeated = SOURCES.ids.repeat_interleave(3, 0), SOURCES.lengths.repeat_interleave(3)
        expected = module(repeated[0], texts, repeated[1])
        assert_same_logits(module.decoder.with_source(source, texts), expected)
        cache = empty_cache(module.config.decoder, batch=12, capacity=8)
        logits, _ = module.step(texts, after(*[6] * 12), cache, source)
        assert_same_logits(logits, expected)
    assert source.layers[0].key.shape[0] == 4


SAVED = [n for n in SEQ2SEQ if family_of(SEQ2SEQ[n].values["model_type"]).hf_config]


@pytest.mark.parametrize("name", [name for name in SAVED if "-unscaled" not in name])
def test_transformers_reads_what_we_write(name: str, tmp_path: Path) -> None:
    case = SEQ2SEQ[name]
    case.write(tmp_path / "source")
    module = load(tmp_path / "source", EncoderDecoderModel)
    save(module, tmp_path / "saved")
    again = load(tmp_path / "saved", EncoderDecoderModel)
    assert again.config == module.config
    expected = expected_logits(case.read(tmp_path / "saved"))
    with torch.inference_mode():
        logits = again(SOURCES.ids, TARGETS, SOURCES.lengths)
        assert_same_logits(logits, expected)
        assert torch.equal(logits, module(SOURCES.ids, TARGETS, SOURCES.lengths))


@pytest.mark.parametrize(("base", "name"), [("MarianModel", "marian"), ("BartModel", "bart")])
def test_a_base_model_has_a_head_without_bias(base: str, name: str, tmp_path: Path) -> None:
    # As facebook/bart-base is published.
    case = SEQ2SEQ[name]
    body = EncoderCase(base, case.values, spread=case.spread)
    body.write(tmp_path / "source")
    module = load(tmp_path / "source", EncoderDecoderModel)
    assert module.decoder.head_bias is None
    save(module, tmp_path / "saved")
    assert load(tmp_path / "saved", EncoderDecoderModel).config == module.config
    for folder in ("source", "saved"):
        expected = expected_logits(case.read(tmp_path / folder))
        with torch.inference_mode():
            assert_same_logits(module(SOURCES.ids, TARGETS, SOURCES.lengths), expected)


def test_a_longer_context_is_reached_by_relative_positions(tmp_path: Path) -> None:
    reference = SEQ2SEQ["t5"].write(tmp_path)
    module = load(tmp_path, EncoderDecoderModel, max_context=2000)
    assert module.config.decoder.context_length == module.config.encoder.context_length == 2000
    with torch.inference_mode():
        logits = module(SOURCES.ids, TARGETS, SOURCES.lengths)
    assert_same_logits(logits, expected_logits(reference))
