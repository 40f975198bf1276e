"""Live models that were changed: the bundle computes what the object computes, or is refused."""

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_models import reference_model
from tests.refusals import refusal
from tests.tiny import FAMILY_CONFIGS
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ortolan.export.exportable import Exportable
from ortolan.export.proof.certificate import certify, thresholds
from ortolan.export.proof.probes import make_probes
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.parts import TEXT
from ortolan.runtime.verification.certificate import Certificate

LLAMA: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

Model = Any

Change = Callable[[Model], object]


class Plain(transformers.LlamaForCausalLM):
    """A subclass that computes the same."""


class Scaled(transformers.LlamaForCausalLM):
    """A subclass with a forward of its own."""

    def forward(self, *args: Any, **options: Any) -> Any:
        return doubled(super().forward(*args, **options))


class Pooled(transformers.BertModel):
    """An encoder with a pooling of its own."""

    def forward(self, input_ids: Tensor, **options: Any) -> Tensor:
        states: Tensor = super().forward(input_ids, **options).last_hidden_state
        return states.mean(1)


class Normed(transformers.BertModel):
    """An encoder whose states are normalized in the end."""

    def forward(self, *args: Any, **options: Any) -> Any:
        output = super().forward(*args, **options)
        output.last_hidden_state = nn.functional.normalize(output.last_hidden_state, dim=-1)
        return output


class Low(nn.Module):
    """A linear layer with a product of low rank next to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Squared(nn.Module):
    """A feed-forward part with another activation."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.gate_proj(x).relu() ** 2 * self.up_proj(x))
        return out


def doubled(output: Any) -> Any:
    output.logits = output.logits * 2
    return output


def twice(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2 if isinstance(output, Tensor) else None


def halved(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] / 2,)


def same(module: nn.Module, args: Any, output: Any) -> None:
    """A hook that only looks."""


def randomised(model: Model) -> Model:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


def changed(model: Model, change: Change | None) -> Model:
    if change is not None:
        change(model)
    return model


def llama(change: Change | None = None, **values: Any) -> Model:
    config = transformers.LlamaConfig(**LLAMA | values)
    return changed(randomised(transformers.LlamaForCausalLM(config)), change)


def of_type(name: str, change: Change | None = None) -> Model:
    """A tiny model of a type."""
    values = dict(FAMILY_CONFIGS[name])
    (architecture,) = values.pop("architectures", [None])
    spread = 0.1 if name == "t5" else 0.2
    return changed(reference_model(values, architecture=architecture, spread=spread), change)


def derived(kind: type[Any], name: str) -> Model:
    values = {key: v for key, v in FAMILY_CONFIGS[name].items() if key != "architectures"}
    return randomised(kind(kind.config_class(**values)))


def olmo3(change: Change | None = None) -> Model:
    """A model of a type without a family."""
    kind: Any = transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.for_model("olmo3", **LLAMA | {"eos_token_id": 1})
    return changed(randomised(kind.from_config(config)), change)


def patched(model: Model) -> None:
    own = model.forward
    model.forward = lambda *args, **options: doubled(own(*args, **options))


def with_low_rank(model: Model) -> None:
    attention = model.model.layers[0].self_attn
    attention.q_proj = Low(attention.q_proj)


def untied(model: Model) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 1.5)


def meta() -> Model:
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def replaced(path: str, make: Callable[[Any], nn.Module]) -> Change:
    """Replace a submodule by another one made of it."""

    def replace(model: Model) -> None:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make(model.get_submodule(path)))

    return replace


def set_config(**values: Any) -> Change:
    return lambda model: vars(model.config).update(values)


def hooked(path: str, hook: Callable[..., Any] = twice) -> Change:
    return lambda model: model.get_submodule(path).register_forward_hook(hook)


LAYER = "model.layers.0"

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}

REFUSED: dict[str, Callable[[], Model]] = {
    "own forward": lambda: randomised(Scaled(transformers.LlamaConfig(**LLAMA))),
    "patched forward": lambda: llama(patched),
    "other MLP": lambda: llama(replaced(f"{LAYER}.mlp", Squared)),
    "other norm": lambda: llama(replaced("model.norm", lambda _: nn.Identity())),
    "other activation": lambda: llama(replaced(f"{LAYER}.mlp.act_fn", lambda _: nn.ReLU())),
    "low rank": lambda: llama(with_low_rank),
    "hook": lambda: llama(hooked(f"{LAYER}.mlp")),
    "pre-hook": lambda: llama(lambda m: m.lm_head.register_forward_pre_hook(halved)),
    "weight norm": lambda: llama(lambda m: weight_norm(m.model.layers[0].mlp.up_proj)),
    "frequencies": lambda: llama(set_config(**ROPE)),
    "epsilon": lambda: llama(set_config(rms_norm_eps=9.0)),
    "largest norm": lambda: llama(lambda m: setattr(m.model.embed_tokens, "max_norm", 1.0)),
    "untied": lambda: llama(untied, tie_word_embeddings=True),
    "meta": meta,
    "without a family": lambda: olmo3(hooked("lm_head")),
    "own pooling": lambda: derived(Pooled, "bert"),
    "own normalization": lambda: derived(Normed, "bert"),
    "encoder": lambda: of_type("bert", hooked("bert.encoder.layer.0.output")),
    "images": lambda: of_type("vit", hooked("vit.layernorm")),
    "sounds": lambda: of_type("wav2vec2", hooked("lm_head")),
    "encoder-decoder": lambda: of_type("t5", hooked("lm_head")),
    "speech": lambda: of_type("whisper", hooked("model.encoder.layer_norm")),
    "images and texts": lambda: of_type("clip", hooked("text_model.encoder.layers.0.mlp")),
    "images in prompts": lambda: of_type("llava", hooked("model.multi_modal_projector.linear_2")),
}
"""Models that were changed."""

EQUAL: dict[str, Callable[[], Model]] = {
    "subclass": lambda: randomised(Plain(transformers.LlamaConfig(**LLAMA))),
    "hook that looks": lambda: llama(hooked(LAYER, same)),
    "half": lambda: llama(lambda m: m.half()),
    "training": lambda: derived(transformers.GPT2LMHeadModel, "gpt2").train(),
    "fewer layers": lambda: llama(
        lambda m: (m.model.layers.__delitem__(1), set_config(num_hidden_layers=1)(m))
    ),
    "frozen": lambda: llama(lambda m: m.requires_grad_(False)),
    "without a family": olmo3,
    "without a family, in half": lambda: olmo3(lambda m: m.to(torch.bfloat16)),
    **{
        name: lambda name=name: of_type(name)  # type: ignore[misc]
        for name in ("bert", "vit", "wav2vec2", "t5", "whisper", "clip", "siglip2", "llava")
    },
}
"""Models that are exported as they are."""


def certified(model: nn.Module) -> tuple[Exportable, Certificate]:
    """The reference of a live model and of its parts."""
    opened = open_exportable(model)
    gc.collect()
    for part in filter(None, (opened.parts.get(TEXT), opened)):
        bounds = thresholds("fp32", output=part.output_kind)
        certificate = certify(part, make_probes(part, proof="quick"), thresholds=bounds)
    return opened, certificate


def everything(model: nn.Module) -> Any:
    """Everything about a model that an export might leave changed."""
    modules = [
        (name, module.training, sorted(vars(module)), dict(module._forward_hooks))
        for name, module in model.named_modules()
    ]
    tensors = [
        (name, id(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.clone())
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return modules, tensors, str(getattr(model, "config", None))


def assert_unchanged(model: nn.Module, before: Any) -> None:
    modules, tensors, config = everything(model)
    assert (modules, config) == (before[0], before[2])
    for (*facts, values), (*old_facts, old) in zip(tensors, before[1], strict=True):
        assert facts == old_facts
        assert values.is_meta or torch.equal(values, old)


@pytest.mark.parametrize("name", REFUSED)
def test_a_live_model_unlike_its_config_and_weights_is_refused_by_the_change(
    name: str, snapshot: SnapshotAssertion
) -> None:
    model = REFUSED[name]()
    before = everything(model)
    text = refusal(lambda: certified(model))
    assert re.sub(r"by [\d.]+ of at most [\d.]+", "by ... of at most ...", text) == snapshot
    assert_unchanged(model, before)


@pytest.mark.parametrize("name", EQUAL)
def test_a_live_model_is_its_own_reference_and_stays_as_it_was(name: str) -> None:
    model = EQUAL[name]()
    before = everything(model)
    opened, certificate = certified(model)
    assert opened.original is not None
    assert len(certificate.probes) >= 4
    assert_unchanged(model, before)
