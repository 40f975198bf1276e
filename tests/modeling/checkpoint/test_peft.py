"""Adapters that PEFT writes: merged on reading they compute what PEFT computes, or are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import refused
from tests.modeling.tiny_encoders import THREE_LABELS, EncoderCase
from tests.modeling.tiny_models import LLAMA, assert_same_logits, random_text
from tests.tiny.decoders import GPT2
from tests.tiny.encoders import BART, BERT, T5, VIT
from torch import Tensor, nn
from transformers import PreTrainedModel

import ortolan
from ortolan.modeling import TransformerModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.models.transformer import EncoderDecoderModel

pytestmark = pytest.mark.filterwarnings("ignore")

TIED = {"tie_word_embeddings": True}

LLM = EncoderCase("LlamaForCausalLM", LLAMA)
TIED_LLM = EncoderCase("LlamaForCausalLM", LLAMA | TIED)
GEMMA = EncoderCase("Gemma2ForCausalLM", LLAMA | TIED | {"model_type": "gemma2", "head_dim": 8})
GPT = EncoderCase("GPT2LMHeadModel", GPT2)
UNTIED_GPT = EncoderCase("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False})
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL = EncoderCase("MixtralForCausalLM", LLAMA | EXPERTS)
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
        modules: that it trains, or other settings of its LoraConfig.
        settings: more of them.
        quick: not only among the slow tests.
        tokens: the vocabulary is resized to this number before training.
        method: class of the config.
        wrapped: class that the base is loaded as for training, if another one.
    """

    base: EncoderCase
    modules: list[str] | str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    tokens: int | None = None
    method: str = "LoraConfig"
    wrapped: EncoderCase | None = None


COMPUTED = {
    "ranks and alphas by pattern": Case(
        LLM,
        LINEAR,
        {
            "rank_pattern": {r"layers\.1\..*_proj": 2, "q_proj": 3},
            "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 9, "down_proj": 1},
        },
        quick=True,
    ),
    "rank-stabilized": Case(LLM, LINEAR, {"use_rslora": True}, quick=True),
    "some layers": Case(LLM, LINEAR, {"layers_to_transform": [1]}),
    "all linear": Case(LLM, "all-linear", {"exclude_modules": ["o_proj"]}),
    "attention of a mixture": Case(MIXTRAL, ATTENTION),
    "norms": Case(LLM, ATTENTION, {"modules_to_save": ["norm", "lm_head"]}, quick=True),
    "embedding": Case(LLM, ["q_proj", "embed_tokens"]),
    "head": Case(LLM, ["q_proj", "lm_head"]),
    "biases of trained modules": Case(GPT, ["c_attn"], {"bias": "lora_only"}),
    "all biases": Case(GPT, ["c_attn"], {"bias": "all"}),
    "square conv1d and a linear head": Case(UNTIED_GPT, ["attn.c_proj", "lm_head"], quick=True),
    "conv1d alone": Case(GPT, ["c_attn", "c_proj", "c_fc"], quick=True),
    "conv1d and a tied embedding": Case(GPT, ["attn.c_proj", "wte"], quick=True),
    "saved positions of GPT": Case(GPT, ["c_proj"], {"modules_to_save": ["wpe"]}),
    "saved embedding, tied": Case(
        TIED_LLM, ATTENTION, {"modules_to_save": ["embed_tokens"]}, quick=True
    ),
    "saved head, tied": Case(TIED_LLM, ATTENTION, {"modules_to_save": ["lm_head"]}),
    "both saved, tied": Case(TIED_LLM, ATTENTION, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "both saved, tied on purpose": Case(
        TIED_LLM, ATTENTION, {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    ),
    "embedding, tied": Case(TIED_LLM, ["q_proj", "embed_tokens"], quick=True),
    "head, tied": Case(TIED_LLM, ["q_proj", "lm_head"], quick=True),
    "embedding, tied on purpose": Case(
        TIED_LLM, ["q_proj", "embed_tokens"], {"ensure_weight_tying": True}
    ),
    "scaled embedding, tied": Case(GEMMA, ["q_proj", "embed_tokens"]),
    "language model of LLaVA, tied": Case(LLAVA, r".*language_model.*(q_proj|embed_tokens)"),
    "classifier": Case(CLASSIFIER, ["query", "value"], {"task_type": "SEQ_CLS"}, quick=True),
    "embedding of a classifier": Case(CLASSIFIER, ["word_embeddings"]),
    "masked language model": Case(MASKED, ["query", "dense"]),
    "encoder without its prefix": Case(BARE, ["query", "value"], quick=True),
    "T5": Case(SEQ2SEQ, ["q", "v", "wo"], {"task_type": "SEQ_2_SEQ_LM"}, quick=True),
    "BART": Case(BARTS, ["q_proj", "fc1"]),
}

REFUSED = {
    "dora": Case(LLM, ATTENTION, {"use_dora": True}),
    "pissa": Case(LLM, ATTENTION, {"init_lora_weights": "pissa"}),
    "parameters": Case(MIXTRAL, None, {"target_parameters": ["experts.gate_up_proj"]}),
    "new tokens": Case(LLM, ATTENTION, {"trainable_token_indices": [3, 5]}),
    "towers of images": Case(LLAVA, ATTENTION),
    "more tokens": Case(LLM, ATTENTION, quick=True, tokens=105),
    "more tokens, tied": Case(TIED_LLM, ["q_proj", "embed_tokens"], tokens=105),
    "classifier with its own head": Case(
        MASKED, ["query"], {"task_type": "SEQ_CLS"}, quick=True, wrapped=CLASSIFIER
    ),
    "embedding of a masked language model": Case(MASKED, ["word_embeddings"]),
    "head of T5, tied": Case(SEQ2SEQ, ["q", "lm_head"], quick=True),
    "table of T5, tied": Case(SEQ2SEQ, ["shared"]),
    "tables of BART": Case(BARTS, ["embed_tokens"]),
    "IA3": Case(
        LLM, ["k_proj", "down_proj"], {"feedforward_modules": ["down_proj"]}, method="IA3Config"
    ),
    "LoHa": Case(LLM, ATTENTION, method="LoHaConfig"),
    "prompt tuning": Case(
        LLM,
        settings={"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"},
        method="PromptTuningConfig",
    ),
}


def rows(cases: Mapping[str, Case]) -> list[Any]:
    return [
        pytest.param(name, marks=[] if case.quick else pytest.mark.slow)
        for name, case in cases.items()
    ]


def write(case: Case, folder: Path) -> PreTrainedModel:
    """Write a base checkpoint and a random adapter; return the model as PEFT loads it."""
    import peft

    trained_on = case.wrapped or case.base
    case.base.write(folder / "base")
    model = trained_on.read(folder / "base")
    if case.tokens is not None:
        model.resize_token_embeddings(case.tokens)
    torch.manual_seed(0)
    modules = {} if case.modules is None else {"target_modules": case.modules}
    config = getattr(peft, case.method)(**modules, **case.settings)
    trained: Any = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.15 * noise)
    trained.save_pretrained(str(folder / "adapter"))
    if case in REFUSED.values():
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


@pytest.mark.parametrize("name", rows(COMPUTED))
def test_adapters_of_peft_compute_the_same(name: str, tmp_path: Path) -> None:
    reference = write(COMPUTED[name], tmp_path)
    ours = load(open_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter"), TransformerModel)
    assert_same_logits(*outputs(ours, reference))


@pytest.mark.parametrize("name", rows(REFUSED))
def test_other_adapters_of_peft_are_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write(REFUSED[name], tmp_path)
    assert refused(tmp_path / "base", tmp_path / "adapter") == snapshot


OF_TRANSFORMERS = (
    *("ranks and alphas by pattern", "attention of a mixture", "square conv1d and a linear head"),
    *("embedding, tied", "head, tied", "saved embedding, tied", "embedding, tied on purpose"),
    "scaled embedding, tied",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_adapters_of_peft_compute_the_same_through_transformers(name: str, tmp_path: Path) -> None:
    reference = write(COMPUTED[name], tmp_path)
    options = ortolan.ExportOptions(adapter=tmp_path / "adapter", via="transformers")
    ortolan.export(tmp_path / "base", tmp_path / "bundle", options=options)
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    ids = random_text(17)
    with torch.inference_mode():
        expected = reference(input_ids=ids, use_cache=False).logits
    assert_same_logits(torch.from_numpy(model.logits(ids[0].numpy()))[None], expected)
