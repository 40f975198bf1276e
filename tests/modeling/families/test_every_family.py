"""Every family that Ortolan reads: its tiny config, and what can be done with it."""

from pathlib import Path

import pytest
from tests.modeling.tiny_models import reference_model
from tests.tiny import FAMILY_CONFIGS

from ortolan.modeling import save
from ortolan.modeling.checkpoint.folder import config_from_hf, load
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES, llama
from ortolan.modeling.models.transformer import build


def test_every_family_has_a_tiny_config_and_nothing_else_does() -> None:
    assert sorted(FAMILY_CONFIGS) == sorted(FAMILIES)
    assert all(values["model_type"] == name for name, values in FAMILY_CONFIGS.items())


def test_a_family_that_is_only_read_cannot_be_saved_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(llama, "hf_config")
    model = build(config_from_hf(FAMILY_CONFIGS["llama"], ModelConfig))
    with pytest.raises(ConfigError, match="llama: expected a family that can be saved"):
        save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_family_that_is_only_read_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(llama, "hf_config")
    reference_model(FAMILY_CONFIGS["llama"]).save_pretrained(tmp_path)
    assert load(tmp_path).config.model_type == "llama"
