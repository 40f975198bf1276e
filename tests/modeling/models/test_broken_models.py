"""Encoders and encoder-decoders whose checkpoint is damaged or has another head."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.modeling.checkpoint.refusals import edit, reconfigure, reshape, weight_error
from tests.modeling.tiny_encoders import (
    ENCODERS,
    IMAGES,
    SEQ2SEQ,
    EncoderCase,
    ragged,
    random_images,
    reference_output,
)
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import BERT
from transformers import PreTrainedModel

from ortolan.modeling import (
    ConfigError,
    EncoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    TransformerModel,
    WeightError,
    load,
    save,
)
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.config import ClassifierHead

CASES = ENCODERS | IMAGES | SEQ2SEQ


def saved(name: str, folder: Path) -> Path:
    CASES[name].write(folder)
    return folder


SHAPES: list[tuple[str, str, tuple[int, ...] | None, str]] = [
    *(
        (name, weight, None, f"1 differences from config.json: missing {weight}.")
        for name, weight in {
            "bert-classifier": "bert.pooler.dense.weight",
            "vit-classifier": "vit.embeddings.cls_token",
            "marian": "final_logits_bias",
            "bart": "model.decoder.layernorm_embedding.weight",
            "t5": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        }.items()
    ),
    (
        *("distilbert", "transformer.layer.1.ffn.lin2.bias", None),
        "1 differences from config.json: missing distilbert.transformer.layer.1.ffn.lin2.bias.",
    ),
    *(
        (name, weight, (*shape, 2), f"{weight}: expected shape {shape}, got {(*shape, 2)}")
        for name, weight, shape in [
            ("vit", "embeddings.cls_token", (1, 1, 32)),
            ("vit-classifier", "vit.embeddings.position_embeddings", (1, 17, 32)),
            ("marian", "final_logits_bias", (1, 97)),
            ("bart", "model.encoder.embed_positions.weight", (98, 32)),
            ("t5", "decoder.block.2.layer.1.EncDecAttention.k.weight", (64, 32)),
        ]
    ),
    *(
        (name, weight, (2,), f"1 differences from config.json: unexpected {weight}.")
        for name, weight in [
            ("bert-masked", "bert.encoder.layer.1.crossattention.self.query.weight"),
            ("bert-masked", "bert.encoder.layer.2.output.dense.weight"),
            ("vit", "embeddings.mask_token"),
            ("t5", "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
            ("t5", "encoder.block.0.layer.1.DenseReluDense.wi_1.weight"),
        ]
    ),
]


@pytest.mark.parametrize(("name", "weight", "shape", "message"), SHAPES)
def test_weights_that_contradict_the_config_are_named(
    name: str, weight: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path
) -> None:
    reshape(saved(name, tmp_path), {weight: shape})
    assert message in weight_error(tmp_path)


@pytest.mark.parametrize(
    ("name", "copy", "original"),
    [
        ("bert-masked", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("marian", "lm_head.weight", "model.shared.weight"),
        ("bart", "model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("t5", "decoder.embed_tokens.weight", "shared.weight"),
        ("marian-two-vocabularies", "lm_head.weight", "model.decoder.embed_tokens.weight"),
    ],
)
def test_a_stored_copy_of_a_shared_table_must_equal_it(
    name: str, copy: str, original: str, tmp_path: Path
) -> None:
    saved(name, tmp_path)
    before = {key: p.clone() for key, p in load(tmp_path, TransformerModel).named_parameters()}
    edit(tmp_path, lambda tensors: tensors.update({copy: tensors[original].clone()}))
    after = dict(load(tmp_path, TransformerModel).named_parameters())
    assert all(torch.equal(after[key], value) for key, value in before.items())
    edit(tmp_path, lambda tensors: tensors.update({copy: tensors[original] * 2}))
    with pytest.raises(WeightError, match=f"{copy}: .*embedding"):
        load(tmp_path, TransformerModel)


def test_a_head_without_weights_is_an_error(tmp_path: Path) -> None:
    # transformers would initialise a random one.
    saved("bert-masked", tmp_path)
    reconfigure(tmp_path, architectures=["BertForSequenceClassification"])
    message = weight_error(tmp_path)
    for weight in ("bert.pooler.dense", "classifier"):
        assert f"missing {weight}.weight" in message
    assert "unexpected" not in message


def test_a_model_without_a_head_ignores_the_weights_of_one(tmp_path: Path) -> None:
    saved("bert-classifier", tmp_path)
    reconfigure(tmp_path, architectures=["BertModel"])
    texts = ragged(5, 9)
    body = ENCODERS["bert-classifier"].reference().base_model
    assert isinstance(body, PreTrainedModel)
    expected = reference_output(body, input_ids=texts.ids, attention_mask=texts.mask)
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(texts.ids, texts.lengths)
    assert_same_logits(ours[texts.mask.bool()], expected[texts.mask.bool()])


def test_a_t5_with_an_untied_head_equals_transformers(tmp_path: Path) -> None:
    reference = SEQ2SEQ["t5-gated"].reference()
    reference.config.scale_decoder_outputs = False
    generator = torch.Generator().manual_seed(3)
    reference.lm_head.weight = torch.nn.Parameter(torch.randn(97, 32, generator=generator))
    reference.save_pretrained(tmp_path)
    with pytest.raises(WeightError, match="tie_word_embeddings"):
        load(tmp_path, EncoderDecoderModel)
    reconfigure(tmp_path, tie_word_embeddings=False)
    module, texts = load(tmp_path, EncoderDecoderModel), ragged(5, 5)
    expected = reference_output(reference, input_ids=texts.ids, decoder_input_ids=texts.ids)
    with torch.inference_mode():
        assert_same_logits(module(texts.ids, texts.ids), expected)
    save(module, tmp_path / "saved")
    with torch.inference_mode():
        again = load(tmp_path / "saved", EncoderDecoderModel)
        assert torch.equal(again(texts.ids, texts.ids), module(texts.ids, texts.ids))


def test_a_shorter_context_keeps_the_first_positions(tmp_path: Path) -> None:
    saved("bart", tmp_path)
    short, whole = (
        load(tmp_path, EncoderDecoderModel, max_context=12),
        load(tmp_path, EncoderDecoderModel),
    )
    texts = ragged(12, 7)
    with torch.inference_mode():
        ours = short(texts.ids, texts.ids, texts.lengths)
        assert torch.equal(ours, whole(texts.ids, texts.ids, texts.lengths))
    assert short.encoder.position_embedding is not None
    assert len(short.encoder.position_embedding.weight) == 14
    with pytest.raises(ConfigError, match=r"max_context .*96.* 97"):
        load(tmp_path, EncoderDecoderModel, max_context=97)


def test_the_context_of_images_is_fixed(tmp_path: Path) -> None:
    saved("vit", tmp_path)
    with pytest.raises(ConfigError, match=r"must be 17, .*got 9"):
        load(tmp_path, EncoderModel, max_context=9)


def test_an_image_of_another_size_is_an_error(tmp_path: Path) -> None:
    module = load(saved("vit", tmp_path), EncoderModel)
    with pytest.raises(ValueError, match=r"\(3, 8, 8\).*\(3, 8, 6\)"):
        module(random_images(IMAGES["vit"].values)[..., :6])


@pytest.mark.parametrize("kind", [EncoderModel, EncoderDecoderModel])
def test_a_checkpoint_of_another_kind_of_model_is_an_error(
    kind: type[TransformerModel], tmp_path: Path
) -> None:
    name = "t5" if kind is EncoderModel else "bert"
    with pytest.raises(ConfigError, match="not an encoder"):
        load(saved(name, tmp_path), kind)


def test_a_head_that_config_json_cannot_describe_is_an_error(tmp_path: Path) -> None:
    config = read_config(saved("bert-classifier", tmp_path), EncoderConfig)
    head = ClassifierHead(labels=("a", "b"), pooling="mean", activation="tanh")
    with pytest.raises(ConfigError, match="head"):
        save(EncoderModel(replace(config, head=head)), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_an_unsupported_architecture_of_bert_is_an_error(tmp_path: Path) -> None:
    EncoderCase("BertForMultipleChoice", BERT).write(tmp_path)
    with pytest.raises(ConfigError, match=r"got \['BertForMultipleChoice'\]"):
        load(tmp_path, EncoderModel)
