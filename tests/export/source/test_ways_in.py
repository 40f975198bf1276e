"""Checkpoints and live models of every kind: exported, or refused with a remedy."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from syrupy.assertion import SnapshotAssertion
from tests.export.models_of_kinds import opened
from tests.refusals import refusal
from torch import nn

import ortolan
from ortolan.export.options import Via
from ortolan.export.preview.preview import preview
from ortolan.modeling import ConfigError

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

SEQ2SEQ = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}

VIT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}

REFUSED: dict[str, dict[str, Any]] = {
    "LlamaForSequenceClassification": SIZES,
    "Qwen3ForSequenceClassification": SIZES,
    "LlamaModel": SIZES | {"tie_word_embeddings": True},
    "LlamaForTokenClassification": SIZES,
    "LlamaForQuestionAnswering": SIZES,
    "BertForMultipleChoice": SIZES,
    "BertForNextSentencePrediction": SIZES,
    "StableLmForCausalLM": SIZES | {"qk_layernorm": True},
}
"""Configs of checkpoints that cannot be exported, by the class that saved them."""


def tiny(name: str, values: dict[str, Any]) -> Any:
    """A random model of a class of transformers."""
    cls: Any = getattr(transformers, name)
    torch.manual_seed(0)
    return cls(cls.config_class(**values)).eval()


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_cannot_be_exported_is_refused_with_a_remedy(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    source = tmp_path / "source"
    tiny(name, REFUSED[name]).save_pretrained(source)
    text = refusal(lambda: preview(source), tmp_path)
    assert text == snapshot
    assert refusal(lambda: ortolan.export(source, tmp_path / "out"), tmp_path) == text
    via: Via = "family" if "CausalLM" in name or "Bert" in name else "transformers"
    assert refusal(lambda: preview(source, via=via), tmp_path) == snapshot(name=f"{name} by {via}")


def test_a_second_head_of_a_language_model_is_left_out(tmp_path: Path) -> None:
    values = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    values |= {"bos_token_id": 1, "eos_token_id": 2}
    tiny("GPT2DoubleHeadsModel", values).save_pretrained(tmp_path)
    assert preview(tmp_path).kind == "decoder"


# --- live models ----------------------------------------------------------------------------------


def test_a_live_language_model_of_transformers_computes_the_same(tmp_path: Path) -> None:
    module = tiny("LlamaForCausalLM", SIZES | {"tie_word_embeddings": True}).to(torch.bfloat16)
    ids = list(range(3, 20))
    ortolan.export(module, tmp_path / "out")
    got = ortolan.load(tmp_path / "out", ortolan.Decoder).logits(ids)
    with torch.no_grad():
        want = module.float()(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_live_model_takes_the_tokenizer_of_its_local_folder(checkpoint: Path) -> None:
    model = opened(transformers.AutoModelForCausalLM.from_pretrained(checkpoint))
    copy = model.companions["tokenizer.json"]
    assert isinstance(copy, Path)
    assert copy.parent != checkpoint
    assert copy.read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    del model
    gc.collect()
    assert not copy.exists()  # the temporary folder goes with the source


def test_a_live_encoder_decoder_can_be_opened() -> None:
    values = SEQ2SEQ | {"max_position_embeddings": 64}
    assert opened(tiny("BartForConditionalGeneration", values)).kind == "encoder-decoder"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_a_compiled_model_is_the_model_that_was_compiled() -> None:
    compiled: Any = torch.compile(tiny("ViTForImageClassification", VIT))
    assert opened(compiled).kind == "encoder"
    with pytest.raises(ConfigError, match=r"^OfImages: "):
        opened(cast("nn.Module", torch.compile(OfImages())))


class OfImages(nn.Module):
    """A module without ids or a state."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels


class OfPairs(nn.Module):
    """A user's own encoder-decoder."""

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return source + target + mask


def with_adapters() -> nn.Module:
    """A model as PEFT wraps it."""
    of_peft: type[nn.Module] = type("PeftModel", (OfImages,), {"__module__": "peft.peft_model"})
    return of_peft()


def with_loaded_adapters() -> nn.Module:
    """A model of transformers after `load_adapter`."""
    module: Any = tiny("LlamaForCausalLM", SIZES)
    module._hf_peft_config_loaded = True
    loaded: nn.Module = module
    return loaded


def with_wrapped_modules() -> nn.Module:
    """A model of transformers in which PEFT has wrapped a module, as in `base_model.model`."""
    module: nn.Module = tiny("LlamaForCausalLM", SIZES)
    module.lm_head = with_adapters()
    return module


@pytest.mark.parametrize(
    "make",
    [with_wrapped_modules, OfImages, OfPairs, with_adapters, with_loaded_adapters],
)
def test_a_live_module_that_cannot_be_exported_is_refused(
    make: Callable[[], nn.Module], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: ortolan.export(make(), tmp_path / "out")) == snapshot
