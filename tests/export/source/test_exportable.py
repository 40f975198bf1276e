"""Sources of every kind: interface, tables, tokens, companions and hashes."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_models
from tests.export.conftest import Exported
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
from tests.refusals import refusal
from tests.tiny.tokenizers import of_characters

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.modeling import save
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    LanguageModelHead,
    SinusoidalPositions,
)
from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.bundle.manifest import Output, Tokens
from ortolan.runtime.bundle.text_source import TextSource

Export = Callable[[str], Exported]

CASES = {**tiny_encoders.ENCODERS, **tiny_encoders.IMAGES, **tiny_encoders.SEQ2SEQ}

LABELS = ("no", "yes")


def change(path: Path, **values: object) -> None:
    """Change keys of a JSON file, or create it."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def saved(name: str, folder: Path) -> Path:
    CASES[name].reference().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


# --- bundles --------------------------------------------------------------------------------------


def test_module_and_its_checkpoint_have_the_same_weights_and_graph(
    exported: Export, tmp_path: Path
) -> None:
    read = exported("llama")
    live = ortolan.export(read.module, tmp_path / "live")
    assert live.manifest.weights == read.bundle.manifest.weights
    assert live.read("decoder.onnx") == read.bundle.read("decoder.onnx")
    assert live.manifest.provenance.model_type == "llama"
    assert live.manifest.tokenizer is None
    names = {"certificate.json", "certificate.bin", "decoder.onnx", *live.manifest.weights}
    assert {file.name for file in live.manifest.files} == names


def test_companions_are_copied_unchanged(exported: Export, checkpoint: Path) -> None:
    bundle = exported("llama").bundle
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert bundle.read(name) == (checkpoint / name).read_bytes()
    assert bundle.manifest.tokenizer == "tokenizer.json"
    tokens = bundle.manifest.tokens
    assert (tokens.bos, tokens.eos, tokens.pad) == (1, (2, 5), None)  # of generation_config.json


def test_keys_that_were_accepted_and_ignored_are_in_the_manifest(
    folder: Path, tmp_path: Path
) -> None:
    change(folder / "config.json", strange=1, unsloth_fixed=True)
    options = ExportOptions(accept_unknown=("strange",))
    provenance = ortolan.export(folder, tmp_path / "out", options=options).manifest.provenance
    assert provenance.accepted_keys == ("strange",)
    assert "unsloth_fixed" in provenance.ignored_keys
    assert "hidden_size" not in provenance.ignored_keys


# --- kinds ----------------------------------------------------------------------------------------


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
    assert (source.kind, source.output, source.tokens) == ("encoder", gives, Tokens())
    assert source.source == TextSource(max_tokens=20, pairs=gives.kind == "labels")
    assert (source.vocab_size, source.context_length) == (97, 20)


def test_a_sentence_folder_has_a_length_and_prompts(tmp_path: Path) -> None:
    write_sentence_head(saved("bert", tmp_path), EmbeddingHead(pooling=("mean", "last")), 32)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 30}')
    prompts = '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    (tmp_path / "config_sentence_transformers.json").write_text(prompts)
    source = opened(tmp_path)
    assert source.output == Output(kind="embedding", size=64)
    assert source.source == TextSource(
        max_tokens=30, prompts={"query": "query: "}, default_prompt="query"
    )
    assert opened(tmp_path, 35).context_length == 35
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    assert opened(tmp_path).context_length == 96


def test_image_encoder_has_no_vocabulary_and_a_vit_s_defaults() -> None:
    source = source_of(image_config(channels=1))
    half = (0.5,)
    expected = ImageSource(
        channels=1, height=9, width=6, mean=half, std=half, scale=1 / 255, resample="bilinear"
    )
    assert (source.kind, source.source, source.tokens) == ("encoder", expected, Tokens())
    assert (source.vocab_size, source.context_length) == (1, 7)


def test_tables_of_both_sides_have_their_names_in_the_module() -> None:
    module = module_of(seq2seq_config(SinusoidalPositions()))
    source = opened(module, 17)
    assert source.tables.keys() == {"encoder.position_table", "decoder.position_table"}
    for name, table in source.tables.items():
        np.testing.assert_array_equal(table, module.get_buffer(name)[:17])
    assert (source.kind, source.source) == ("encoder-decoder", TextSource(max_tokens=17))
    sizes = (source.vocab_size, source.source_vocab_size, source.context_length)
    assert (sizes, source.output) == ((97, 97, 17), None)


def test_tables_have_the_rows_and_the_stretch_of_the_chosen_context(checkpoint: Path) -> None:
    assert len(opened(checkpoint, 50).tables["rotary_cos"]) == 50
    module = tiny_models.decoder(tiny_models.qwen2())
    own, longer = (opened(module, n).tables["rotary_cos"].numpy() for n in (None, 400))
    assert (len(own), len(longer)) == (200, 400)
    assert np.abs(own - longer[:200]).max() > 0.1


# --- companions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("bart", {"tokenizer.json", "generation_config.json", "chat_template.jinja"}),
        ("bert", {"tokenizer.json"}),
        ("vit", set()),
    ],
)
def test_companions_depend_on_the_kind(name: str, kept: set[str], tmp_path: Path) -> None:
    write_plain_tokenizer(saved(name, tmp_path))
    change(tmp_path / "generation_config.json", num_beams=4)
    if name == "bart":
        (tmp_path / "chat_template.jinja").write_text("")
    assert opened(tmp_path).companions.keys() == kept


def test_a_chat_template_in_the_config_of_the_tokenizer_is_copied(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    config.write_text('{"chat_template": "hello"}')
    assert opened(folder).companions[config.name] == config


def test_another_tokenizer_replaces_the_checkpoints_own(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    of_characters().save(str(other))
    source = open_exportable(checkpoint, ExportOptions(tokenizer=other))
    assert source.companions["tokenizer.json"] == other


def test_a_checkpoint_of_images_says_how_they_become_pixels(tmp_path: Path) -> None:
    change(saved("vit-classifier", tmp_path) / "preprocessor_config.json", image_mean=0.25)
    takes = opened(tmp_path).source
    assert isinstance(takes, ImageSource)
    assert takes.mean == (0.25,) * 3


# --- special tokens -------------------------------------------------------------------------------


def test_start_comes_from_the_config_of_a_module() -> None:
    source = source_of(replace(seq2seq_config(), eos_token_ids=(3, 4), pad_token_id=5))
    assert source.tokens == Tokens(start=2, eos=(3, 4), pad=5)


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_special_tokens_are_those_of_transformers(place: str, tmp_path: Path) -> None:
    (saved("bart", tmp_path) / "generation_config.json").unlink()
    values = {"forced_bos_token_id": 8, "forced_eos_token_id": 9, "decoder_start_token_id": 7}
    change(tmp_path / place, **values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BartForConditionalGeneration

        theirs: Any = BartForConditionalGeneration.from_pretrained(str(tmp_path)).generation_config
    tokens = opened(tmp_path).tokens
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (
        theirs.decoder_start_token_id,
        theirs.forced_bos_token_id,
        theirs.forced_eos_token_id,
    )


# --- hashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "marian", "vit"])
def test_hash_of_a_folder_covers_its_config(name: str, tmp_path: Path) -> None:
    before = opened(saved(name, tmp_path)).origin.sha256()
    assert opened(tmp_path).origin.sha256() == before
    change(tmp_path / "config.json", transformers_version="0")
    assert opened(tmp_path).origin.sha256() != before


def test_hash_of_a_checkpoint_covers_its_weights(folder: Path) -> None:
    before = opened(folder).origin.sha256()
    save(tiny_models.decoder(tiny_models.llama(), torch.float16), folder)
    assert opened(folder).origin.sha256() != before


MODULES: dict[str, Callable[[], Any]] = {
    **{
        str(dtype): lambda dtype=dtype: tiny_models.decoder(tiny_models.llama(), dtype)  # type: ignore[misc]
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    },
    "encoder": lambda: module_of(encoder_config()),
    "images": lambda: module_of(image_config()),
    "seq2seq": lambda: module_of(seq2seq_config()),
}


@pytest.mark.parametrize("name", MODULES)
def test_hash_of_a_module_covers_its_config_and_its_last_weight(name: str) -> None:
    module = MODULES[name]()
    before = opened(module).origin.sha256()
    assert opened(MODULES[name]()).origin.sha256() == before
    list(module.parameters())[-1].data.flatten()[-1] += 1
    assert opened(module).origin.sha256() != before
    assert opened(tiny_models.decoder(tiny_models.mistral())).origin.sha256() != before


# --- refused --------------------------------------------------------------------------------------


def unknown_key(folder: Path) -> object:
    change(folder / "config.json", strange=1)
    return opened(folder)


def larger_tokenizer(folder: Path) -> object:
    source = saved("marian-two-vocabularies", folder / "marian")
    write_plain_tokenizer(source)  # 97 tokens
    return opened(source)


def tokenizer_of_images(folder: Path) -> object:
    source = saved("vit", folder / "vit")
    path = write_plain_tokenizer(source)
    return open_exportable(source, ExportOptions(tokenizer=path))


REFUSED: dict[str, Callable[[Path], object]] = {
    "an unknown key": unknown_key,
    "accepted keys of a module": lambda _: open_exportable(
        tiny_models.decoder(tiny_models.llama()), ExportOptions(accept_unknown=("strange",))
    ),
    "no checkpoint": lambda folder: opened(folder / "none"),
    "no tokenizer": lambda folder: open_exportable(
        folder, ExportOptions(tokenizer=folder / "none.json")
    ),
    "a longer context": lambda folder: opened(folder, 601),
    "a shorter context of images": lambda _: opened(module_of(image_config()), 5),
    "a tokenizer for images": tokenizer_of_images,
    "a tokenizer with more tokens than one of two vocabularies": larger_tokenizer,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_cannot_be_exported_is_refused(
    name: str, folder: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: REFUSED[name](folder), tmp_path) == snapshot
