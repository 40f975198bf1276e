"""Tensors that contradict config.json, and shared ones that are stored again, in every kind."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import edit, reconfigure, refused, reshape
from tests.modeling.tiny_encoders import CASES, SEQ2SEQ, ragged, reference_output
from tests.modeling.tiny_models import assert_same_logits
from tests.refusals import named_rows
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.modeling import EncoderDecoderModel, EncoderModel, TransformerModel, load

Shapes = Mapping[str, tuple[int, ...] | None]

ATTENTION, UP = "model.layers.0.self_attn", "model.layers.0.mlp.up_proj.weight"

EXPERTS = "model.layers.1.block_sparse_moe.experts"

PACKED = "transformer.h.1.attn.c_attn.weight"

CONV = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original"

BROKEN: dict[str, list[Shapes]] = {
    "llama": [
        {
            f"{ATTENTION}.k_proj.weight": None,
            "model.norm.weight": None,
            "model.layers.1.self_attn.q_norm.weight": (8,),
            "model.layers.9.mlp.up_proj.weight": (48, 32),
            "model.layers.0.mlp.down_proj.weight": (48, 32),
        },
        {f"other.{number:02}.weight": (1,) for number in range(40)},
        {f"{ATTENTION}.q_proj.bias": (32,)},
        # Swapped projections, of which the sum of the rows fits.
        {f"{ATTENTION}.q_proj.weight": (16, 32), f"{ATTENTION}.k_proj.weight": (32, 32)},
        *({UP.replace("0", layer): (48, 32)} for layer in ("01", "-1", "x", "1.0")),
        {"lm_head.weight": None},
    ],
    "llama-tied": [{"lm_head.weight": (96, 32)}],
    "gpt2": [{PACKED: shape} for shape in ((), (32,), (32, 96, 1), (96, 32), (0, 96), (32, 95))],
    "bert-classifier": [{"bert.pooler.dense.weight": None}],
    "bert-masked": [
        {"bert.encoder.layer.1.crossattention.self.query.weight": (2,)},
        {"bert.encoder.layer.2.output.dense.weight": (2,)},
    ],
    "distilbert": [{"transformer.layer.1.ffn.lin2.bias": None}],
    "vit": [{"embeddings.cls_token": (1, 1, 32, 2)}, {"embeddings.mask_token": (2,)}],
    "vit-classifier": [
        {"vit.embeddings.cls_token": None},
        {"vit.embeddings.position_embeddings": (1, 17, 32, 2)},
    ],
    "marian": [{"final_logits_bias": None}, {"final_logits_bias": (1, 97, 2)}],
    "bart": [
        {"model.decoder.layernorm_embedding.weight": None},
        {"model.encoder.embed_positions.weight": (98, 32, 2)},
    ],
    "t5": [
        {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": None},
        {"decoder.block.2.layer.1.EncDecAttention.k.weight": (64, 32, 2)},
        {"encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": (2,)},
        {"encoder.block.0.layer.1.DenseReluDense.wi_1.weight": (2,)},
    ],
    "whisper": [{"model.encoder.layers.0.self_attn.k_proj.bias": (32,)}],
    "moonshine": [
        {"model.encoder.layers.0.self_attn.q_proj.weight": (32, 36)},
        {"model.decoder.layers.1.encoder_attn.o_proj.weight": (36, 64)},
        {"model.decoder.layers.0.mlp.fc1.weight": (48, 36)},
        {"model.encoder.conv1.bias": (36,)},
    ],
    "wav2vec2": [
        {f"{CONV}0": None},
        {f"{CONV}0": (1, 1, 7)},
        {f"{CONV}0": (8,)},
        {f"{CONV}1": (32, 4, 8)},
        {"lm_head.extra": (3,)},
    ],
    "llava": [{"model.novel.weight": (2,)}],
    "mixtral": [
        {f"{EXPERTS}.2.w3.weight": None, f"{EXPERTS}.0.w2.weight": (32, 16)},
        {f"{EXPERTS}.4.w2.weight": (16, 32)},
    ],
}

LEFT_OVER = (
    *("q_proj.weight_scale", "q_proj.qweight", "q_proj.weight_fake_quant.scale", "q_proj.nothing"),
    *("k_bmm_quantizer._amax", "q_proj.lora_A.default.weight", "q_proj.base_layer.weight"),
    *("q_proj.weight_mask", "q_proj.parametrizations.weight.original0"),
)
"""What tools of quantization and training leave that changes what a model computes."""

BROKEN["llama"] += [{f"model.layers.0.{name}": (1,)} for name in LEFT_OVER]

IDLE = (
    *("k_scale", "attn.v_scale", "q_proj.input_scale", "q_proj.input_zero_point"),
    *("q_proj.weight.absmax", "q_proj.weight.nested_quant_map", "q_proj.SCB"),
    "q_proj.weight.quant_state.bitsandbytes__nf4",
)
"""What quantizers leave next to floats."""

ROWS = named_rows(BROKEN)


@pytest.mark.parametrize("row", ROWS)
def test_weights_that_contradict_the_config_are_named(
    row: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    name, shapes = ROWS[row]
    CASES[name].write(tmp_path)
    reshape(tmp_path, shapes)
    assert refused(tmp_path) == snapshot


def test_what_a_quantizer_left_next_to_floats_is_ignored(tmp_path: Path) -> None:
    CASES["llama"].write(tmp_path)
    expected = weights_of(tmp_path)
    reshape(tmp_path, {f"model.layers.0.{name}": (1,) for name in IDLE})
    torch.testing.assert_close(weights_of(tmp_path), expected, rtol=0, atol=0)


COPIES = {
    "llama-tied": ("model.embed_tokens", ("lm_head",)),
    "bert-masked": ("bert.embeddings.word_embeddings", ("cls.predictions.decoder",)),
    "marian": ("model.shared", ("lm_head",)),
    "marian-two-vocabularies": ("model.decoder.embed_tokens", ("lm_head",)),
    "bart": ("model.shared", ("model.encoder.embed_tokens",)),
    "t5": ("shared", ("encoder.embed_tokens", "decoder.embed_tokens")),
    "t5-encoder": ("shared", ("encoder.embed_tokens",)),
}
"""A shared tensor, and its other names."""

ALONE = sorted(COPIES.keys() - {"bert-masked", "marian", "marian-two-vocabularies"})
"""Models that may be stored under the other names alone."""


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: w.clone() for name, w in load(folder, TransformerModel).named_parameters()}


def copied(original: str, copy: str, factor: float, tensors: dict[str, Tensor]) -> None:
    tensors[copy] = tensors[original] * factor


# T5 alone as an encoder has no other place for a copy that was trained.
@pytest.mark.parametrize("name", sorted(COPIES.keys() - {"t5-encoder"}))
def test_a_stored_copy_of_a_shared_tensor_must_equal_it(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    CASES[name].write(tmp_path)
    original, (copy, *_) = COPIES[name]
    expected = weights_of(tmp_path)
    for factor in (1, 2):
        edit(tmp_path, partial(copied, f"{original}.weight", f"{copy}.weight", factor))
        if factor == 1:
            torch.testing.assert_close(weights_of(tmp_path), expected, rtol=0, atol=0)
    assert refused(tmp_path) == snapshot


@pytest.mark.parametrize("name", ALONE)
def test_a_shared_tensor_may_be_stored_under_its_other_names_alone(
    name: str, tmp_path: Path
) -> None:
    case, (original, copies) = CASES[name], COPIES[name]
    case.write(tmp_path)
    expected = weights_of(tmp_path)
    for some in (copies, copies[-1:]):
        case.write(tmp_path)

        def rename(tensors: dict[str, Tensor], names: tuple[str, ...] = some) -> None:
            values = tensors.pop(f"{original}.weight")
            tensors.update({f"{name}.weight": values.clone() for name in names})

        edit(tmp_path, rename)
        torch.testing.assert_close(weights_of(tmp_path), expected, rtol=0, atol=0)


def test_heads_follow_the_class_that_the_config_names(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    CASES["bert-masked"].write(tmp_path)
    # transformers would initialise a random one.
    reconfigure(tmp_path, architectures=["BertForSequenceClassification"])
    assert refused(tmp_path) == snapshot
    CASES["bert-classifier"].write(tmp_path)
    reconfigure(tmp_path, architectures=["BertModel"])
    texts = ragged(5, 9)
    body = CASES["bert-classifier"].reference().base_model
    assert isinstance(body, PreTrainedModel)
    expected = reference_output(body, input_ids=texts.ids, attention_mask=texts.mask)
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(texts.ids, texts.lengths)
    assert_same_logits(ours[texts.mask.bool()], expected[texts.mask.bool()])


def test_a_t5_with_an_untied_head_equals_transformers(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    reference = SEQ2SEQ["t5-gated"].reference()
    reference.config.scale_decoder_outputs = False
    generator = torch.Generator().manual_seed(3)
    reference.lm_head.weight = torch.nn.Parameter(torch.randn(97, 32, generator=generator))
    reference.save_pretrained(tmp_path)
    assert refused(tmp_path) == snapshot
    reconfigure(tmp_path, tie_word_embeddings=False)
    module, texts = load(tmp_path, EncoderDecoderModel), ragged(5, 5)
    expected = reference_output(reference, input_ids=texts.ids, decoder_input_ids=texts.ids)
    with torch.inference_mode():
        assert_same_logits(module(texts.ids, texts.ids), expected)
