"""Keys that Ortolan takes as inert, each given another value: transformers computes the same.

A key that changes what transformers computes has to be read, or refused.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from tests.modeling.tiny_encoders import ENCODERS, IMAGES, random_images, reference_output
from tests.modeling.tiny_models import reference_model
from tests.tiny import FAMILY_CONFIGS
from tests.tiny.decoders import VOCABULARY
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.errors import OrtolanError
from ortolan.modeling import EncoderModel
from ortolan.modeling.checkpoint.folder import config_from_hf, load
from ortolan.modeling.config import GridPositions, ModelConfig
from ortolan.modeling.families.inert_keys import INERT
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.layers.grid import Grid
from ortolan.modeling.models.model import TransformerModel

SOURCES = Path(transformers.__file__).parent

SHARED = ("configuration_utils", "modeling_utils", "masking_utils", "modeling_rope_utils")
"""Files of transformers that read keys of every model."""

NOT_TRIED = frozenset(
    {"_attn_implementation", "architectures", "attn_implementation", "dtype", "torch_dtype"}
    | {"experts_implementation", "_experts_implementation", "id2label", "label2id", "num_labels"}
    | {"model_type", "transformers_version"}
)
"""Keys that choose a kernel, a type or a class; labels are read where there are some."""

TOLERANCE = 2e-3

GRID = (3, 5)
"""Rows and columns of the patches of an image, for encoders that keep proportions."""

CASES: dict[str, tuple[dict[str, Any], str | None, float]] = {
    **{
        name: ({**values}, (values.get("architectures") or [None])[0], 0.3)
        for name, values in FAMILY_CONFIGS.items()
        # The keys of either encoder are those of its own type.
        if name not in ("clip", "siglip2")
    },
    **{
        f"tiny {name}": (case.values, case.architecture, case.spread)
        for name, case in {**ENCODERS, **IMAGES}.items()
        if case.architecture.endswith("Classification")
    },
}


@dataclass(frozen=True)
class Published:
    """A tiny model of transformers, saved."""

    model: PreTrainedModel
    folder: Path

    @cached_property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return values

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(5)
        ids = torch.randint(15, VOCABULARY, (2, 24), generator=generator)
        given = {
            "input_ids": lambda: ids[:1],
            "pixel_values": lambda: random_images(self.values),
            "input_features": lambda: torch.randn(
                (1, self.values["num_mel_bins"], 2 * self.values["max_source_positions"]),
                generator=generator,
            ),
            "input_values": lambda: torch.randn((1, 4000), generator=generator) / 4,
        }
        name = self.model.main_input_name
        if "num_patches" in self.values:
            rows, columns = GRID
            numbers = self.values["num_channels"] * self.values["patch_size"] ** 2
            return {
                "pixel_values": torch.randn((1, rows * columns, numbers), generator=generator),
                "pixel_attention_mask": torch.ones(1, rows * columns),
                "spatial_shapes": torch.tensor([GRID]),
            }
        both = self.model.config.is_encoder_decoder
        return {name: given[name](), **({"decoder_input_ids": ids[1:, :19]} if both else {})}

    @cached_property
    def trained(self) -> dict[str, Tensor]:
        """Its weights, without tables that follow from a config."""
        parameters = dict(self.model.named_parameters())
        return {
            name: tensor
            for name, tensor in self.model.state_dict().items()
            if name not in parameters or parameters[name].requires_grad
        }

    @cached_property
    def expected(self) -> Tensor:
        return reference_output(self.model, **self.inputs)

    def by_transformers(self, values: dict[str, Any]) -> Tensor | None:
        """The output with another config; None where that is no config of these weights."""
        try:
            (self.folder / "config.json").write_text(json.dumps(values))
            config = type(self.model.config).from_pretrained(self.folder)
            kind: Any = type(self.model)
            model = kind._from_config(config, attn_implementation="eager")
            shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
            if any(shapes.get(name) != tensor.shape for name, tensor in self.trained.items()):
                return None
            model.load_state_dict(self.trained, strict=False)
            model.tie_weights()
            return reference_output(model.eval(), **self.inputs)
        except Exception:
            return None

    def by_ortolan(self, values: dict[str, Any]) -> Tensor:
        (self.folder / "config.json").write_text(json.dumps(values))
        model = load(self.folder, TransformerModel)
        with torch.inference_mode():
            if isinstance(model, EncoderModel) and isinstance(
                model.config.positions, GridPositions
            ):
                grid = Grid.of(GRID, 1, model.config.positions)
                patches: Tensor = self.inputs["pixel_values"].transpose(0, 1)
                return cast(Tensor, model(patches, grid=grid))
            output: Tensor = model(*self.inputs.values())
        return output


def inert_keys(published: Published, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Keys that the reader takes as inert, and that the model's source mentions."""
    skipped: set[str] = set()

    def skip(reader: ConfigReader, *keys: str) -> None:
        skipped.update(keys)
        original(reader, *keys)

    original = ConfigReader.skip
    monkeypatch.setattr(ConfigReader, "skip", skip)
    config_from_hf(published.values, ModelConfig)
    module = type(published.model.config).__module__.split(".")[-2]
    files = [*(SOURCES / "models" / module).glob("*.py"), *(SOURCES / f"{n}.py" for n in SHARED)]
    words = set(re.findall(r"\w+", "".join(file.read_text() for file in files)))
    return (skipped | INERT) & words - NOT_TRIED


def other_values(value: object) -> Iterator[object]:
    """Plausible values of a key, instead of this one."""
    match value:
        case bool():
            yield not value
        case int():
            yield from sorted({value + 1, value // 2} - {value})
        case float():
            yield value + 0.5
        case str():
            yield from {"relu", "gelu_new", "silu", "relative_key", "rms_norm"} - {value}
        case [_, *_]:
            yield value[::-1]
        case None:
            yield from (True, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_key_that_has_an_effect_is_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, architecture, spread = CASES[name]
    rest = {key: value for key, value in values.items() if key != "architectures"}
    model = reference_model(rest, architecture=architecture, spread=spread)
    model.save_pretrained(tmp_path)
    published = Published(model, tmp_path)
    unchanged = published.by_transformers(published.values)
    assert unchanged is not None, "nothing would be compared"
    assert distance(unchanged, published.expected) < 1e-5
    whole = model.config.to_dict()
    # Weights decide, since configs with towers get it wrong.
    decided = {"tie_word_embeddings"} if "text_config" in values else set()
    for key in sorted(inert_keys(published, monkeypatch) - decided):
        for value in other_values(whole.get(key)):
            changed = published.values | {key: value}
            output = published.by_transformers(changed)
            if output is None or distance(output, published.expected) < 1e-5:
                continue
            try:
                ours = published.by_ortolan(changed)
            except OrtolanError:
                continue
            assert distance(ours, output) < TOLERANCE, f"{key}: {value!r}"


def distance(got: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest number."""
    return float((got.float() - expected.float()).abs().max() / expected.abs().max())


# --- keys that transformers writes twice ----------------------------------------------------------


def read(name: str, **changes: Any) -> Any:
    return config_from_hf(FAMILY_CONFIGS[name] | changes, ModelConfig)


def test_of_two_keys_for_the_same_the_one_is_read_that_transformers_reads() -> None:
    layers = read("gpt_neo", attention_layers=["local", "global"]).blocks
    assert [block.attention.sliding_window is None for block in layers] == [False, True]
    gemma = read("recurrent_gemma", attention_window_size=9, sliding_window=6)
    windows = {getattr(block.mixer, "sliding_window", None) for block in gemma.blocks}
    assert windows == {6, None}
    gated = read("t5", feed_forward_proj="gated-gelu", dense_act_fn="silu", is_gated_act=False)
    dense = gated.encoder.blocks[0].dense
    assert (dense.kind, dense.activation) == ("mlp", "silu")


def test_the_padding_token_moves_positions_that_begin_after_it() -> None:
    config = read("m2m_100", pad_token_id=4)
    assert (config.encoder.positions.offset, config.decoder.positions.offset) == (5, 5)
    assert read("xglm", pad_token_id=1).positions.offset == 2


def test_values_that_change_nothing_are_read() -> None:
    assert read("ernie4_5_moe", moe_norm_min=1e-9) == read("ernie4_5_moe")
    assert read("nomic_bert", activation_function="swiglu") == read("nomic_bert")
    changed = read("nomic_bert", activation_function="geglu", hidden_act="gelu")
    assert changed.blocks[0].dense.activation == "gelu"
