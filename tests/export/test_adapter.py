"""PEFT adapters at run time, against merged weights and against PEFT."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_models import LLAMA, QWEN2, random_text, reference_logits, reference_model
from tests.refusals import refusal
from tests.tiny.decoders import GPT2, VOCABULARY
from torch import Tensor, nn
from transformers import PreTrainedModel

import ortolan
from ortolan.cli import cli
from ortolan.export.adapter import export_adapter
from ortolan.export.options import ExportOptions, Int4, Via
from ortolan.runtime import Decoder, load, verify
from ortolan.runtime.bundle.adapter_folder import BLOB, NAME

pytestmark = pytest.mark.slow

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": (LLAMA, LINEAR),
    "qwen2": (QWEN2 | {"tie_word_embeddings": True}, LINEAR),  # biases
    "phi3": (LLAMA | {"model_type": "phi3"}, ("qkv_proj", "gate_up_proj")),  # published joined
    "gpt2": (GPT2, ("c_attn", "c_proj", "c_fc")),  # published transposed
}

WAYS = [*MODELS, *(f"{name} through transformers" for name in MODELS)]

IDS = random_text(24)


def modules_of(model: PreTrainedModel, targets: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the modules that an adapter targets, by name."""
    shapes = {}
    for name, module in model.named_modules():
        if name.endswith(targets):
            outputs, inputs = module.weight.shape
            is_linear = isinstance(module, nn.Linear)
            shapes[name] = (outputs, inputs) if is_linear else (inputs, outputs)
    return shapes


def write_adapter(
    folder: Path,
    model: PreTrainedModel,
    targets: tuple[str, ...],
    *,
    seed: int = 0,
    rank: int = 3,
    tensors: dict[str, Tensor] | None = None,
    **more: Any,
) -> Path:
    """Write a random adapter as PEFT saves it."""
    generator = torch.Generator().manual_seed(seed)
    stored = dict(tensors or {})
    for name, (outputs, inputs) in modules_of(model, targets).items():
        for factor, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = torch.randn(shape, generator=generator) * 0.3
            stored[f"base_model.model.{name}.lora_{factor}.weight"] = values
    folder.mkdir(parents=True)
    save_file(stored, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": list(targets)}
    is_transposed = model.config.model_type == "gpt2"
    config |= {"fan_in_fan_out": is_transposed, "init_lora_weights": True} | more
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged_logits(model: PreTrainedModel, adapter: Path) -> np.ndarray[Any, Any]:
    """Logits of the model with an adapter of plain settings merged into it, `(S, V)`."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name in [name for name in tensors if name.endswith("lora_A.weight")]:
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        update = b @ a * config["lora_alpha"] / len(a)
        weights[f"{module}.weight"] += update.T if config["fan_in_fan_out"] else update
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(weights)
    logits = reference_logits(model, IDS)[0].numpy()
    model.load_state_dict(before)
    return logits


class Base:
    """A tiny checkpoint, and bundles of it."""

    def __init__(self, folder: Path, name: str) -> None:
        name, self.through, _ = name.partition(" through ")
        self.values, self.targets = MODELS[name]
        self.model = self.fresh()
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        self.model.save_pretrained(self.checkpoint)
        self._exported = cache(self._export)

    def fresh(self) -> PreTrainedModel:
        return reference_model(self.values)

    def bundle(self, precision: str = "fp32") -> Path:
        return self._exported(precision)

    def _export(self, precision: str) -> Path:
        via: Via | None = "transformers" if self.through else None
        options = ExportOptions(allow_poor=precision != "fp32", via=via)
        if precision == "int4-split":
            options = replace(options, graphs="split", prefill_precision="int8")
        kind: Any = precision if precision == "fp32" else Int4(method="rtn")
        return ortolan.export(
            self.checkpoint, self.folder / precision, precision=kind, options=options
        ).path


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    return cache(lambda name: Base(tmp_path_factory.mktemp(name), name))


def converted(base: Base, adapter: Path, out: Path, precision: str = "fp32") -> Path:
    bundle = base.bundle(precision)
    return export_adapter(adapter, out, bundle=bundle, checkpoint=base.checkpoint).path


@pytest.mark.parametrize("name", WAYS)
def test_logits_are_those_of_transformers_with_merged_weights(
    bases: Callable[[str], Base], tmp_path: Path, name: str
) -> None:
    base = bases(name)
    adapter = write_adapter(tmp_path / "peft", base.model, base.targets)
    out = converted(base, adapter, tmp_path / "adapter")
    model = load(base.bundle(), Decoder, adapters={"mine": out})
    expected, plain = merged_logits(base.model, adapter), model.logits(IDS[0].numpy())
    got = model.logits(IDS[0].numpy(), adapter="mine")
    assert np.abs(expected - plain).max() > 0.1 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    np.testing.assert_array_equal(plain, load(base.bundle(), Decoder).logits(IDS[0].numpy()))


@pytest.mark.parametrize("name", ["llama", "llama through transformers"])
@pytest.mark.parametrize("precision", ["int4", "int4-split"])
def test_low_bit_bundle_is_as_far_from_the_trained_model_with_as_without_an_adapter(
    bases: Callable[[str], Base], tmp_path: Path, precision: str, name: str
) -> None:
    base = bases(name)
    adapter = write_adapter(tmp_path / "peft", base.model, base.targets)
    out = converted(base, adapter, tmp_path / "adapter", precision)
    model = load(base.bundle(precision), Decoder, adapters={"mine": out})
    ids = IDS[0].numpy()
    own, trained = model.logits(ids), reference_logits(base.model, IDS)[0].numpy()
    got, expected = model.logits(ids, adapter="mine"), merged_logits(base.model, adapter)
    assert np.abs(got - expected).mean() <= 2 * np.abs(own - trained).mean()
    assert np.abs(got - expected).mean() <= 0.5 * np.abs(own - expected).mean()
    # states of prompts are other states if another graph computes them
    is_same = load(base.bundle(precision), Decoder).identity == model.identity
    assert is_same == (precision == "int4")


OF_PEFT: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    "scale by the root": ("llama", {"use_rslora": True}),
    "patterns": ("phi3", {"rank_pattern": {"qkv_proj": 2}, "alpha_pattern": {"qkv_proj": 9}}),
    # The adapter has a copy of the head, which is its embedding; only the head is adapted.
    "a tied head": ("qwen2", {"target_modules": ["q_proj", "lm_head"]}),
    "a tied head through transformers": (
        "qwen2 through transformers",
        {"target_modules": ["q_proj", "lm_head"]},
    ),
}
"""A model, and settings of LoRA."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", OF_PEFT)
def test_logits_are_those_of_peft(bases: Callable[[str], Base], tmp_path: Path, case: str) -> None:
    from peft import LoraConfig, get_peft_model

    name, settings = OF_PEFT[case]
    base = bases(name)
    torch.manual_seed(0)
    lora: dict[str, Any] = {"r": 5, "lora_alpha": 7, "target_modules": list(base.targets)}
    trained = get_peft_model(base.fresh(), LoraConfig(**lora | settings)).eval()
    for parameter, value in trained.named_parameters():
        if "lora_B" in parameter:
            nn.init.normal_(value, std=0.3)
    trained.save_pretrained(str(tmp_path / "peft"))
    out = converted(base, tmp_path / "peft", tmp_path / "adapter")
    model = load(base.bundle(), Decoder, adapters={"mine": out})
    with torch.inference_mode():
        expected = trained(input_ids=IDS).logits[0].numpy()
    got = model.logits(IDS[0].numpy(), adapter="mine")
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_adapter_is_proved_again_by_verify(bases: Callable[[str], Base], tmp_path: Path) -> None:
    base = bases("llama")
    adapter = write_adapter(tmp_path / "peft", base.model, ("q_proj", "v_proj"))
    out = converted(base, adapter, tmp_path / "adapter")
    report, plain = (verify(base.bundle(), adapter=a, isolate=False) for a in (out, None))
    assert report.verdict == "PASS"
    assert report.exact is not None
    assert plain.exact is not None
    assert report.exact.different == plain.exact.different
    # numbers of another adapter, with the right hashes, do not pass
    other = write_adapter(tmp_path / "other", base.model, ("q_proj", "v_proj"), seed=1)
    swapped = converted(base, other, tmp_path / "swapped")
    described = json.loads((swapped / NAME).read_text())
    for entry in json.loads((out / NAME).read_text())["files"]:
        if entry["name"] == BLOB:
            described["files"] = [
                entry if file["name"] == BLOB else file for file in described["files"]
            ]
    (swapped / NAME).write_text(json.dumps(described))
    shutil.copy(out / BLOB, swapped / BLOB)
    assert verify(base.bundle(), adapter=swapped, isolate=False).verdict == "FAIL"


# --- refused --------------------------------------------------------------------------------------

MODEL = "base_model.model.model"
UP = f"{MODEL}.layers.1.mlp.up_proj"

REFUSED: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "activated": {"alora_invocation_tokens": [3]},
    "other method": {"peft_type": "IA3"},
    "bias": {"tensors": {f"{MODEL}.norm.weight": torch.ones(32)}},
    "embedding": {
        "tensors": {
            f"{MODEL}.embed_tokens.lora_embedding_A": torch.ones(2, VOCABULARY),
            f"{MODEL}.embed_tokens.lora_embedding_B": torch.ones(32, 2),
        }
    },
    "rank": {"rank": 1025},
    "not finite": {
        "tensors": {
            f"{UP}.lora_A.weight": torch.ones(1, 32),
            f"{UP}.lora_B.weight": torch.full((48, 1), float("nan")),
        }
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_chosen_at_run_time_is_refused(
    bases: Callable[[str], Base], tmp_path: Path, case: str, snapshot: SnapshotAssertion
) -> None:
    base = bases("llama")
    adapter = write_adapter(tmp_path / "peft", base.model, ("q_proj",), **REFUSED[case])
    assert refusal(lambda: converted(base, adapter, tmp_path / "adapter"), tmp_path) == snapshot
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("case", ["another checkpoint", "no checkpoint", "no adapter"])
def test_folders_that_do_not_belong_together_are_refused(
    bases: Callable[[str], Base], tmp_path: Path, case: str, snapshot: SnapshotAssertion
) -> None:
    base = bases("llama")
    adapter = write_adapter(tmp_path / "peft", base.model, ("q_proj",))
    reference_model(LLAMA, seed=1).save_pretrained(tmp_path / "other")
    text = refusal(
        lambda: export_adapter(
            tmp_path if case == "no adapter" else adapter,
            tmp_path / "out",
            bundle=base.bundle(),
            checkpoint=tmp_path / "other" if case == "another checkpoint" else None,
        ),
        *(tmp_path, base.bundle()),
    )
    assert re.sub(r"hash \w+, got \w+", "hash ..., got ...", text) == snapshot


def test_a_folder_that_is_not_an_adapter_is_not_replaced(
    bases: Callable[[str], Base], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    base = bases("llama")
    adapter = write_adapter(tmp_path / "peft", base.model, ("q_proj",))
    assert refusal(lambda: converted(base, adapter, adapter), tmp_path) == snapshot
    out = converted(base, adapter, tmp_path / "adapter")
    assert refusal(lambda: converted(base, adapter, out), tmp_path) == snapshot
    export_adapter(adapter, out, bundle=base.bundle(), checkpoint=base.checkpoint, force=True)


def test_command_converts_and_names_what_it_made(
    bases: Callable[[str], Base], tmp_path: Path
) -> None:
    base = bases("llama")
    named: dict[str, Any] = {"base_model_name_or_path": str(base.checkpoint)}
    adapter = write_adapter(tmp_path / "peft", base.model, ("q_proj",), **named)
    words = ["adapter", str(adapter), str(tmp_path / "out"), "--bundle", str(base.bundle())]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.exception
    assert "rank 3" in done.output
    assert "model.layers.{}.self_attn.q_proj.weight" in done.output
    done = CliRunner().invoke(cli, [*words, "--force", "--json"], standalone_mode=False)
    printed = json.loads(done.stdout)
    assert printed["ranks"] == [3]
    assert printed["quality"]["word"] == "excellent"
