import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.export import tiny_models
from tests.export.conftest import Exported
from tests.export.models_of_kinds import opened
from tests.tiny.tokenizers import of_characters

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.modeling import CheckpointError, ConfigError, save

Export = Callable[[str], Exported]


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_module_and_its_checkpoint_have_the_same_weights_file(
    exported: Export, tmp_path: Path
) -> None:
    read = exported("llama")
    live = ortolan.export(read.module, tmp_path / "live")
    assert live.manifest.weights == read.bundle.manifest.weights
    assert live.read("decoder.onnx") == read.bundle.read("decoder.onnx")
    assert live.manifest.provenance.model_type == "llama"


def test_a_chat_template_in_the_config_of_the_tokenizer_is_copied(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    config.write_text('{"chat_template": "hello"}')
    assert opened(folder).companions[config.name] == config


def test_companions_are_copied_unchanged(exported: Export, checkpoint: Path) -> None:
    bundle = exported("llama").bundle
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert bundle.read(name) == (checkpoint / name).read_bytes()
    assert bundle.manifest.tokenizer == "tokenizer.json"


def test_a_live_module_has_no_companions(exported: Export) -> None:
    bundle = exported("post-norm").bundle
    names = {file.name for file in bundle.manifest.files}
    assert names == {
        "certificate.json",
        "certificate.bin",
        "decoder.onnx",
        *bundle.manifest.weights,
    }
    assert bundle.manifest.tokenizer is None


def test_another_tokenizer_replaces_the_checkpoints_own(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    of_characters().save(str(other))
    source = open_exportable(checkpoint, tokenizer=other, max_context=None)
    assert source.companions["tokenizer.json"] == other
    with pytest.raises(OptionError, match=r"none\.json"):
        open_exportable(checkpoint, tokenizer=tmp_path / "none.json", max_context=None)


def test_eos_comes_from_generation_config(exported: Export) -> None:
    tokens = exported("llama").bundle.manifest.tokens
    assert (tokens.bos, tokens.eos, tokens.pad) == (1, (2, 5), None)


def test_hash_of_a_checkpoint_covers_its_config_and_its_weights(folder: Path) -> None:
    before = opened(folder).sha256()
    assert opened(folder).sha256() == before
    change(folder / "config.json", rms_norm_eps=1e-5)
    changed = opened(folder).sha256()
    assert changed != before
    save(tiny_models.decoder(tiny_models.llama(), torch.float16), folder)
    assert opened(folder).sha256() not in (before, changed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hash_of_a_module_covers_its_config_and_every_weight(dtype: torch.dtype) -> None:
    def digest(config: Callable[[], ortolan.modeling.DecoderConfig], change: float) -> str:
        module = tiny_models.decoder(config(), dtype)
        module.get_parameter("blocks.0.attention_norm.weight").data[-1] += change
        return open_exportable(module, tokenizer=None, max_context=None).sha256()

    assert digest(tiny_models.llama, 0) == digest(tiny_models.llama, 0)
    assert digest(tiny_models.llama, 0) != digest(tiny_models.llama, 1)
    assert digest(tiny_models.mistral, 0) != digest(tiny_models.llama, 0)


def test_context_can_be_shortened_but_not_lengthened(folder: Path) -> None:
    assert opened(folder, max_context=50).context_length == 50
    assert len(opened(folder, max_context=50).tables["rotary_cos"]) == 50
    with pytest.raises(ConfigError, match=r"max_context .*600"):
        opened(folder, max_context=601)


def test_stretched_positions_are_those_of_the_chosen_context() -> None:
    module = tiny_models.decoder(tiny_models.qwen2())
    own, longer = (
        open_exportable(module, tokenizer=None, max_context=context).tables["rotary_cos"].numpy()
        for context in (None, 400)
    )
    assert (len(own), len(longer)) == (200, 400)
    assert np.abs(own - longer[:200]).max() > 0.1


def test_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        opened(tmp_path)


def test_keys_that_were_accepted_and_ignored_are_in_the_manifest(
    folder: Path, tmp_path: Path
) -> None:
    change(folder / "config.json", strange=1, unsloth_fixed=True)
    options = ExportOptions(accept_unknown=("strange",))
    with pytest.raises(ConfigError, match="strange"):
        opened(folder)
    provenance = ortolan.export(folder, tmp_path / "out", options=options).manifest.provenance
    assert provenance.accepted_keys == ("strange",)
    assert "unsloth_fixed" in provenance.ignored_keys
    assert "hidden_size" not in provenance.ignored_keys


def test_accepted_keys_of_a_live_module_are_an_error(exported: Export) -> None:
    with pytest.raises(OptionError, match="strange"):
        open_exportable(
            exported("llama").module, tokenizer=None, max_context=None, accept_unknown=("strange",)
        )
