"""Adapters that PEFT writes: merged on reading they compute what PEFT computes, or are refused."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_encoders import THREE_LABELS, EncoderCase
from tests.modeling.tiny_models import LLAMA, assert_same_logits, random_text
from tests.tiny.decoders import GPT2
from tests.tiny.encoders import BART, BERT, T5, VIT
from torch import Tensor, nn
from transformers import PreTrainedModel

import ortolan
from ortolan.modeling import CheckpointError, TransformerModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.models.transformer import EncoderDecoderModel, EncoderModel

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TIED = {"tie_word_embeddings": True}

LLM = EncoderCase("LlamaForCausalLM", LLAMA)
TIED_LLM = EncoderCase("LlamaForCausalLM", LLAMA | TIED)
GEMMA = EncoderCase("Gemma2ForCausalLM", LLAMA | TIED | {"model_type": "gemma2", "head_dim": 8})
GPT = EncoderCase("GPT2LMHeadModel", GPT2)
UNTIED_GPT = EncoderCase("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False})
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL = EncoderCase("MixtralForCausalLM", LLAMA | EXPERTS)
BIOGPT = EncoderCase(
    "BioGptForCausalLM",
    {k: v for k, v in LLAMA.items() if "key_value" not in k} | {"model_type": "biogpt"},
)
LLAVA = EncoderCase(
    "LlavaForConditionalGeneration",
    {
        "model_type": "llava",
        "text_config": LLAMA | TIED,
        "vision_config": VIT | {"model_type": "clip_vision_model", "projection_dim": 32},
        "image_token_index": 90,
        **TIED,
    },
)
CLASSIFIER = EncoderCase("BertForSequenceClassification", BERT | THREE_LABELS)
MASKED = EncoderCase("BertForMaskedLM", BERT)
BARE = EncoderCase("BertModel", BERT)
SEQ2SEQ = EncoderCase("T5ForConditionalGeneration", T5, spread=0.17)
BARTS = EncoderCase("BartForConditionalGeneration", BART)

ATTENTION = ["q_proj", "v_proj"]
LINEAR = [*ATTENTION, "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Case:
    """An adapter.

    Attributes:
        base: model that it is trained on.
        settings: of its LoraConfig.
        refused: part of the message if it is refused.
        tokens: the vocabulary is resized to this number before training.
        method: class of the config.
        wrapped: class that the base is loaded as for training, if another one.
    """

    base: EncoderCase
    settings: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    tokens: int | None = None
    method: str = "LoraConfig"
    wrapped: EncoderCase | None = None


CASES = {
    "ranks and alphas by pattern": Case(
        LLM,
        {
            "target_modules": LINEAR,
            "rank_pattern": {r"layers\.1\..*_proj": 2, "q_proj": 3},
            "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 9, "down_proj": 1},
        },
    ),
    "rank-stabilized": Case(LLM, {"target_modules": LINEAR, "use_rslora": True}),
    "some layers": Case(LLM, {"target_modules": LINEAR, "layers_to_transform": [1]}),
    "all linear": Case(LLM, {"target_modules": "all-linear", "exclude_modules": ["o_proj"]}),
    "dora": Case(LLM, {"target_modules": ATTENTION, "use_dora": True}, "use_dora"),
    "pissa": Case(LLM, {"target_modules": ATTENTION, "init_lora_weights": "pissa"}, "pissa"),
    "parameters": Case(
        MIXTRAL, {"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"
    ),
    "attention of a mixture": Case(MIXTRAL, {"target_modules": ATTENTION}),
    "new tokens": Case(
        LLM, {"target_modules": ATTENTION, "trainable_token_indices": [3, 5]}, "trainable_token"
    ),
    "norms": Case(LLM, {"target_modules": ATTENTION, "modules_to_save": ["norm", "lm_head"]}),
    "embedding": Case(LLM, {"target_modules": ["q_proj", "embed_tokens"]}),
    "head": Case(LLM, {"target_modules": ["q_proj", "lm_head"]}),
    "biases of trained modules": Case(GPT, {"target_modules": ["c_attn"], "bias": "lora_only"}),
    "all biases": Case(GPT, {"target_modules": ["c_attn"], "bias": "all"}),
    "square conv1d and a linear head": Case(
        UNTIED_GPT, {"target_modules": ["attn.c_proj", "lm_head"]}
    ),
    "conv1d alone": Case(GPT, {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "conv1d and a tied embedding": Case(GPT, {"target_modules": ["attn.c_proj", "wte"]}),
    "saved positions of GPT": Case(GPT, {"target_modules": ["c_proj"], "modules_to_save": ["wpe"]}),
    "saved embedding, tied": Case(
        TIED_LLM, {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]}
    ),
    "saved head, tied": Case(
        TIED_LLM, {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}
    ),
    "both saved, tied": Case(
        TIED_LLM, {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens", "lm_head"]}
    ),
    "both saved, tied on purpose": Case(
        TIED_LLM,
        {
            "target_modules": ATTENTION,
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "embedding, tied": Case(TIED_LLM, {"target_modules": ["q_proj", "embed_tokens"]}),
    "head, tied": Case(TIED_LLM, {"target_modules": ["q_proj", "lm_head"]}),
    "embedding, tied on purpose": Case(
        TIED_LLM, {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}
    ),
    "scaled embedding, tied": Case(GEMMA, {"target_modules": ["q_proj", "embed_tokens"]}),
    "head by another name, tied": Case(BIOGPT, {"target_modules": ["q_proj", "output_projection"]}),
    "embedding of a head by another name": Case(BIOGPT, {"target_modules": ["embed_tokens"]}),
    "towers of images": Case(
        LLAVA, {"target_modules": ATTENTION}, "also adapts the encoder of images"
    ),
    "language model of LLaVA, tied": Case(
        LLAVA, {"target_modules": r".*language_model.*(q_proj|embed_tokens)"}
    ),
    "more tokens": Case(
        LLM, {"target_modules": ATTENTION}, r"resize_token_embeddings\(105\)", tokens=105
    ),
    "more tokens, tied": Case(
        TIED_LLM,
        {"target_modules": ["q_proj", "embed_tokens"]},
        r"resize_token_embeddings\(105\)",
        tokens=105,
    ),
    "classifier": Case(CLASSIFIER, {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}),
    "classifier with its own head": Case(
        MASKED,
        {"target_modules": ["query"], "task_type": "SEQ_CLS"},
        "modules that the checkpoint lacks",
        wrapped=CLASSIFIER,
    ),
    "embedding of a classifier": Case(CLASSIFIER, {"target_modules": ["word_embeddings"]}),
    "masked language model": Case(MASKED, {"target_modules": ["query", "dense"]}),
    "embedding of a masked language model": Case(
        MASKED, {"target_modules": ["word_embeddings"]}, "is tied to other weights"
    ),
    "encoder without its prefix": Case(BARE, {"target_modules": ["query", "value"]}),
    "T5": Case(SEQ2SEQ, {"target_modules": ["q", "v", "wo"], "task_type": "SEQ_2_SEQ_LM"}),
    "head of T5, tied": Case(SEQ2SEQ, {"target_modules": ["q", "lm_head"]}, "ties to others"),
    "table of T5, tied": Case(SEQ2SEQ, {"target_modules": ["shared"]}, "is tied to other weights"),
    "BART": Case(BARTS, {"target_modules": ["q_proj", "fc1"]}),
    "tables of BART": Case(BARTS, {"target_modules": ["embed_tokens"]}, "is tied to other|ties to"),
    "IA3": Case(
        LLM,
        {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
        "'IA3'",
        method="IA3Config",
    ),
    "LoHa": Case(LLM, {"target_modules": ATTENTION}, "'LOHA'", method="LoHaConfig"),
    "prompt tuning": Case(
        LLM,
        {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"},
        "'PROMPT_TUNING'",
        method="PromptTuningConfig",
    ),
}


def write(case: Case, folder: Path) -> PreTrainedModel:
    """Write a base checkpoint and a random adapter; return the model as PEFT loads it."""
    import peft

    trained_on = case.wrapped or case.base
    case.base.write(folder / "base")
    model = trained_on.read(folder / "base")
    if case.tokens is not None:
        model.resize_token_embeddings(case.tokens)
    torch.manual_seed(0)
    config = getattr(peft, case.method)(**case.settings)
    trained: Any = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.15 * noise)
    trained.save_pretrained(str(folder / "adapter"))
    if case.tokens is not None or case.refused is not None:
        return model
    base = trained_on.read(folder / "base")
    again: Any = peft.PeftModel.from_pretrained(base, str(folder / "adapter"))
    loaded: PreTrainedModel = again.eval()
    return loaded


def outputs(ours: nn.Module, reference: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Outputs of both for the same text."""
    ids = random_text(17).clamp(min=2)
    with torch.inference_mode():
        match ours:
            case EncoderDecoderModel():
                more = {"decoder_input_ids": ids[:, 4:12], "use_cache": False}
                return ours(ids, ids[:, 4:12]), reference(input_ids=ids, **more).logits
            case EncoderModel():
                got = reference(input_ids=ids, attention_mask=torch.ones_like(ids))
                expected = got.logits if "logits" in got else got.last_hidden_state
                return ours(ids), expected
            case _:
                return ours(ids), reference(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("name", CASES)
def test_adapters_of_peft_compute_the_same_or_are_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = write(case, tmp_path)
    if case.refused is not None:
        with pytest.raises(CheckpointError, match=case.refused):
            load(open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter"), TransformerModel)
        return
    ours = load(open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter"), TransformerModel)
    assert_same_logits(*outputs(ours, reference))


OF_TRANSFORMERS = (
    *("ranks and alphas by pattern", "attention of a mixture", "square conv1d and a linear head"),
    *("embedding, tied", "head, tied", "saved embedding, tied", "embedding, tied on purpose"),
    "scaled embedding, tied",
)


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_adapters_of_peft_compute_the_same_through_transformers(name: str, tmp_path: Path) -> None:
    reference = write(CASES[name], tmp_path)
    options = ortolan.ExportOptions(adapter=tmp_path / "adapter", via="transformers")
    ortolan.export(tmp_path / "base", tmp_path / "bundle", options=options)
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    ids = random_text(17)
    with torch.inference_mode():
        expected = reference(input_ids=ids, use_cache=False).logits
    assert_same_logits(torch.from_numpy(model.logits(ids[0].numpy()))[None], expected)
