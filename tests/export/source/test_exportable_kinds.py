"""Sources of encoders and encoder-decoders: kind, tables, special tokens, images, companions."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.models_of_kinds import (
    encoder_config,
    image_config,
    module_of,
    seq2seq_config,
    source_of,
    write_plain_tokenizer,
)
from tests.modeling import tiny_encoders

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import pixels
from ortolan.export.source import open_exportable
from ortolan.modeling import CheckpointError, ConfigError
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    LanguageModelHead,
    SinusoidalPositions,
)
from ortolan.runtime.bundle.manifest import ImageSource, Output, TextSource, Tokens
from ortolan.runtime.errors import TokenizerError

LABELS = ("no", "yes")


def opened(folder: Path) -> Exportable:
    return open_exportable(folder, tokenizer=None, max_context=None)


def write_json(path: Path, **values: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    tiny_encoders.SEQ2SEQ["bart"].reference().save_pretrained(tmp_path)
    write_plain_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    return tmp_path


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    tiny_encoders.IMAGES["vit-classifier"].reference().save_pretrained(tmp_path)
    return tmp_path


# --- kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "gives"),
    [
        (None, Output(kind="states", size=24)),
        (LanguageModelHead(tied=True, bias=False), Output(kind="logits", size=97)),
        (
            ClassifierHead(labels=LABELS, pooling="mean"),
            Output(kind="labels", size=2, labels=LABELS),
        ),
        (EmbeddingHead(pooling=("first",)), Output(kind="embedding", size=24)),
    ],
)
def test_encoder_says_what_it_takes_and_gives(head: Any, gives: Output) -> None:
    source = source_of(encoder_config(head=head))
    assert (source.kind, source.gives) == ("encoder", gives)
    assert source.takes == TextSource(max_tokens=20)
    assert (source.vocab_size, source.context_length) == (97, 20)


def test_a_sentence_folder_says_how_long_texts_are_and_its_prompts(tmp_path: Path) -> None:
    tiny_encoders.ENCODERS["bert"].reference().save_pretrained(tmp_path)
    write_sentence_head(tmp_path, EmbeddingHead(pooling=("mean", "last")), 32)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 30}')
    prompts = '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    (tmp_path / "config_sentence_transformers.json").write_text(prompts)
    source = opened(tmp_path)
    assert source.gives == Output(kind="embedding", size=64)
    assert source.takes == TextSource(
        max_tokens=30, prompts={"query": "query: "}, default_prompt="query"
    )
    longer = open_exportable(tmp_path, tokenizer=None, max_context=35)
    assert longer.context_length == 35
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    assert opened(tmp_path).context_length == 40


def test_encoder_of_images_has_no_vocabulary_and_takes_what_a_vit_does() -> None:
    source = source_of(image_config(channels=1))
    half = (0.5,)
    expected = ImageSource(
        channels=1, height=9, width=6, mean=half, std=half, scale=1 / 255, resample="bilinear"
    )
    assert (source.kind, source.takes, source.tokens) == ("encoder", expected, Tokens())
    assert (source.vocab_size, source.context_length) == (1, 7)


def test_tables_of_both_sides_go_by_the_names_in_the_module() -> None:
    config = seq2seq_config(SinusoidalPositions())
    module = module_of(config)
    source = open_exportable(module, tokenizer=None, max_context=17)
    assert source.kind == "encoder-decoder"
    assert source.tables.keys() == {"encoder.position_table", "decoder.position_table"}
    for name, table in source.tables.items():
        np.testing.assert_array_equal(table, module.get_buffer(name)[:17])
    assert (source.takes, source.gives) == (TextSource(max_tokens=17), None)
    assert (
        source.vocab_size,
        source.source_vocab_size,
        source.context_length,
    ) == (97, 97, 17)


def test_two_vocabularies_are_told_apart_and_a_tokenizer_fits_the_smaller(tmp_path: Path) -> None:
    tiny_encoders.SEQ2SEQ["marian-two-vocabularies"].reference().save_pretrained(tmp_path)
    source = opened(tmp_path)
    assert (source.vocab_size, source.source_vocab_size) == (89, 97)
    write_plain_tokenizer(tmp_path)  # of 97 tokens
    with pytest.raises(TokenizerError, match="below the model's 89, got 96"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["bert", "marian", "vit"])
def test_folder_of_every_kind_has_the_hash_of_its_files(name: str, tmp_path: Path) -> None:
    cases = {**tiny_encoders.ENCODERS, **tiny_encoders.IMAGES, **tiny_encoders.SEQ2SEQ}
    cases[name].reference().save_pretrained(tmp_path)
    before = opened(tmp_path).sha256()
    assert opened(tmp_path).sha256() == before
    write_json(tmp_path / "config.json", transformers_version="0")
    assert opened(tmp_path).sha256() != before


@pytest.mark.parametrize("config", [encoder_config(), image_config(), seq2seq_config()])
def test_hash_of_a_module_of_every_kind_covers_its_last_weight(config: Any) -> None:
    module = module_of(config)
    before = open_exportable(module, tokenizer=None, max_context=None).sha256()
    list(module.parameters())[-1].data.flatten()[-1] += 1
    assert open_exportable(module, tokenizer=None, max_context=None).sha256() != before


def test_context_of_images_cannot_be_shortened() -> None:
    with pytest.raises(ConfigError, match="context_length: must be 7"):
        open_exportable(module_of(image_config()), tokenizer=None, max_context=5)


def test_companions_are_those_that_the_kind_has_a_use_for(bart: Path, tmp_path: Path) -> None:
    write_json(bart / "generation_config.json", num_beams=4)
    (bart / "chat_template.jinja").write_text("")
    assert opened(bart).companions.keys() == {
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    }
    for name, kept in (("bert", {"tokenizer.json"}), ("vit", set())):
        folder = tmp_path / name
        {**tiny_encoders.ENCODERS, **tiny_encoders.IMAGES}[name].reference().save_pretrained(folder)
        write_plain_tokenizer(folder)
        write_json(folder / "generation_config.json", num_beams=4)
        assert opened(folder).companions.keys() == kept


def test_tokenizer_for_images_is_an_error(vit: Path) -> None:
    given = write_plain_tokenizer(vit)
    with pytest.raises(OptionError, match=r"tokenizer\.json: expected no tokenizer"):
        open_exportable(vit, tokenizer=given, max_context=None)


# --- special tokens ---------------------------------------------------------------------------


def test_start_comes_from_the_config_of_a_module() -> None:
    source = source_of(replace(seq2seq_config(), eos_token_ids=(3, 4), pad_token_id=5))
    assert source.tokens == Tokens(start=2, eos=(3, 4), pad=5)
    assert source_of(encoder_config()).tokens == Tokens()


def test_forced_and_suppressed_tokens_come_from_generation_config(bart: Path) -> None:
    write_json(
        bart / "generation_config.json",
        decoder_start_token_id=7,
        forced_bos_token_id=8,
        forced_eos_token_id=[9],
        bad_words_ids=[[12], [10]],
        suppress_tokens=[11, 10],
    )
    tokens = opened(bart).tokens
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (7, 8, 9)
    assert tokens.suppressed == (10, 11, 12)
    assert (tokens.bos, tokens.eos, tokens.pad) == (0, (2,), 1)


def test_old_checkpoints_have_them_in_config(bart: Path) -> None:
    write_json(bart / "config.json", forced_eos_token_id=2, bad_words_ids=[[5]])
    tokens = opened(bart).tokens
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (1, None, 2)
    assert tokens.suppressed == (5,)
    write_json(bart / "config.json", force_bos_token_to_be_generated=True)
    assert opened(bart).tokens.forced_first == 0
    # Where there is a generation config, it counts alone, as in transformers.
    write_json(bart / "generation_config.json", eos_token_id=2)
    tokens = opened(bart).tokens
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (1, None, None)


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_special_tokens_are_those_of_transformers(place: str, bart: Path) -> None:
    write_json(bart / place, forced_bos_token_id=8, forced_eos_token_id=9, decoder_start_token_id=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BartForConditionalGeneration

        theirs: Any = BartForConditionalGeneration.from_pretrained(str(bart)).generation_config
    tokens = opened(bart).tokens
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (
        theirs.decoder_start_token_id,
        theirs.forced_bos_token_id,
        theirs.forced_eos_token_id,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bad_words_ids": [[3, 4]]}, "bad_words_ids of one token each"),
        ({"forced_eos_token_id": [3, 4]}, "one forced_eos_token_id"),
        ({"decoder_start_token_id": [3]}, "expected a JSON object"),
        ({"decoder_start_token_id": 97}, r"ids from 0 to 96, got \[97\]"),
        ({"forced_bos_token_id": -1}, r"ids from 0 to 96, got \[-1\]"),
        ({"forced_eos_token_id": 99}, r"ids from 0 to 96, got \[99\]"),
        ({"suppress_tokens": [3, 98]}, r"ids from 0 to 96, got \[98\]"),
    ],
)
def test_tokens_that_cannot_be_honoured_are_errors(
    values: dict[str, object], message: str, bart: Path
) -> None:
    write_json(bart / "generation_config.json", **values)
    with pytest.raises(OptionError, match=message):
        opened(bart)


# --- images -----------------------------------------------------------------------------------


def test_pixels_are_those_of_the_image_processor_of_transformers(vit: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import ViTImageProcessorPil

        theirs: Any = ViTImageProcessorPil(
            size={"height": 8, "width": 8},
            image_mean=[0.4, 0.5, 0.6],
            image_std=[0.1, 0.2, 0.3],
            rescale_factor=1 / 200,
            resample=3,
        )
        theirs.save_pretrained(str(vit))
    takes = opened(vit).takes
    assert isinstance(takes, ImageSource)
    assert (takes.mean, takes.std, takes.resample) == ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3), "bicubic")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    expected = theirs(images=list(images), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(pixels(images, takes), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"size": 8}, {}),
        ({"size": {"height": 8, "width": 8}, "do_center_crop": False}, {}),
        ({"image_mean": 0.25, "image_std": [1, 2, 3]}, {"mean": (0.25,) * 3, "std": (1, 2, 3)}),
        ({"do_normalize": False}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}),
        ({"do_rescale": False}, {"scale": 1.0}),
        ({"resample": 0}, {"resample": "nearest"}),
        ({"resample": 1}, {"resample": "lanczos"}),
        ({"resample": 4}, {"resample": "box"}),
        ({"resample": 5}, {"resample": "hamming"}),
    ],
)
def test_what_a_preprocessor_leaves_out_is_that_of_a_vit(
    values: dict[str, object], expected: dict[str, object], vit: Path
) -> None:
    write_json(vit / "preprocessor_config.json", **values)
    takes = opened(vit).takes
    wanted: dict[str, object] = {
        "channels": 3,
        "height": 8,
        "width": 8,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "scale": 1 / 255,
        "resample": "bilinear",
    }
    assert isinstance(takes, ImageSource)
    assert {name: getattr(takes, name) for name in wanted} == wanted | expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 9}, "images of 8 x 8 pixels, as in config.json, got 9"),
        ({"size": {"shortest_edge": 8}}, "images of 8 x 8 pixels"),
        ({"size": {"height": 8, "width": 9}}, "images of 8 x 8 pixels"),
        ({"do_center_crop": True}, "no steps but .* got do_center_crop"),
        ({"do_pad": True}, "no steps but .* got do_pad"),
        ({"resample": 6}, "resample from 0 to 5, got 6"),
        ({"image_mean": [0.5]}, "image_mean of 3 numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "positive rescale_factor and image_std"),
        ({"rescale_factor": 0}, "positive rescale_factor"),
        ({"rescale_factor": "1"}, "a JSON object of an image processor"),
    ],
)
def test_preprocessor_that_cannot_be_honoured_is_an_error(
    values: dict[str, object], message: str, vit: Path
) -> None:
    write_json(vit / "preprocessor_config.json", **values)
    with pytest.raises(OptionError, match=rf"preprocessor_config\.json: expected {message}"):
        opened(vit)


@pytest.mark.parametrize("contents", ["", "[]", "{", "\xff", "[" * 100_000])
def test_preprocessor_that_is_none_is_an_error(contents: str, vit: Path) -> None:
    (vit / "preprocessor_config.json").write_bytes(contents.encode("latin-1"))
    with pytest.raises(OptionError, match=r"preprocessor_config\.json: expected a JSON object"):
        opened(vit)


def test_folder_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        opened(tmp_path)
