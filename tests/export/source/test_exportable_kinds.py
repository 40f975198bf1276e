"""Sources of encoders and encoder-decoders: kind, tables, special tokens, companions."""

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
    opened,
    seq2seq_config,
    source_of,
    write_plain_tokenizer,
)
from tests.modeling import tiny_encoders

from ortolan.export.errors import OptionError
from ortolan.export.source import open_exportable
from ortolan.modeling import ConfigError
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    LanguageModelHead,
    SinusoidalPositions,
)
from ortolan.runtime.bundle.manifest import Output, Tokens
from ortolan.runtime.bundle.sources import ImageSource, TextSource
from ortolan.runtime.errors import TokenizerError

LABELS = ("no", "yes")


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
def test_inputs_and_outputs_of_an_encoder(head: Any, gives: Output) -> None:
    source = source_of(encoder_config(head=head))
    assert (source.kind, source.gives) == ("encoder", gives)
    assert source.takes == TextSource(max_tokens=20, pairs=gives.kind == "labels")
    assert (source.vocab_size, source.context_length) == (97, 20)


def test_a_sentence_folder_has_a_length_and_prompts(tmp_path: Path) -> None:
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
    assert opened(tmp_path).context_length == 96


def test_image_encoder_has_no_vocabulary_and_a_vit_s_defaults() -> None:
    source = source_of(image_config(channels=1))
    half = (0.5,)
    expected = ImageSource(
        channels=1, height=9, width=6, mean=half, std=half, scale=1 / 255, resample="bilinear"
    )
    assert (source.kind, source.takes, source.tokens) == ("encoder", expected, Tokens())
    assert (source.vocab_size, source.context_length) == (1, 7)


def test_tables_of_both_sides_have_their_names_in_the_module() -> None:
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


def test_a_tokenizer_fits_the_smaller_of_two_vocabularies(tmp_path: Path) -> None:
    tiny_encoders.SEQ2SEQ["marian-two-vocabularies"].reference().save_pretrained(tmp_path)
    source = opened(tmp_path)
    assert (source.vocab_size, source.source_vocab_size) == (89, 97)
    write_plain_tokenizer(tmp_path)  # of 97 tokens
    with pytest.raises(TokenizerError, match="89"):
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
    with pytest.raises(ConfigError, match="context_length"):
        open_exportable(module_of(image_config()), tokenizer=None, max_context=5)


def test_companions_depend_on_the_kind(bart: Path, tmp_path: Path) -> None:
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


def test_a_checkpoint_of_images_says_how_they_become_pixels(vit: Path) -> None:
    write_json(vit / "preprocessor_config.json", image_mean=0.25)
    takes = opened(vit).takes
    assert isinstance(takes, ImageSource)
    assert takes.mean == (0.25,) * 3


def test_tokenizer_for_images_is_an_error(vit: Path) -> None:
    given = write_plain_tokenizer(vit)
    with pytest.raises(OptionError, match=r"tokenizer\.json"):
        open_exportable(vit, tokenizer=given, max_context=None)


# --- special tokens ---------------------------------------------------------------------------


def test_start_comes_from_the_config_of_a_module() -> None:
    source = source_of(replace(seq2seq_config(), eos_token_ids=(3, 4), pad_token_id=5))
    assert source.tokens == Tokens(start=2, eos=(3, 4), pad=5)
    assert source_of(encoder_config()).tokens == Tokens()


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
