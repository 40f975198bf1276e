"""The format of recurrent networks: saved, loaded, and read or refused."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.modeling.models.test_recurrent import CONFIGS, model_of, texts
from tests.nonsense import CONFIG_VALUES

from ortolan.modeling import RecurrentModel, load, read_config, save
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig, RecurrentConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import published_config


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_network_is_loaded_as_it_was(name: str, tmp_path: Path) -> None:
    module = model_of(name)
    save(module, tmp_path)
    loaded = load(tmp_path, RecurrentModel)
    assert loaded.config == CONFIGS[name]
    with torch.no_grad():
        assert torch.equal(loaded(texts()), module(texts()))


def test_a_network_is_not_taken_for_a_transformer(tmp_path: Path) -> None:
    save(model_of("gru"), tmp_path)
    with pytest.raises(ConfigError, match="a recurrent network, not a decoder"):
        load(tmp_path)


def test_the_context_may_be_any(tmp_path: Path) -> None:
    save(model_of("machine"), tmp_path)
    assert load(tmp_path, RecurrentModel, max_context=1000).config.context_length == 1000
    assert read_config(tmp_path, RecurrentConfig).context_length == 32


def test_a_cell_of_another_name_is_refused(tmp_path: Path) -> None:
    save(model_of("gru"), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ConfigError, match="cell must be"):
        config_from_hf(values | {"cell": "ligru"}, ModelConfig)


VALUES = {
    key: value for config in CONFIGS.values() for key, value in published_config(config).items()
}

JSON_VALUES: st.SearchStrategy[object] = st.sampled_from([*CONFIG_VALUES, "gru"])


@settings(max_examples=60, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted({*VALUES} - {"model_type"})), JSON_VALUES))
def test_any_config_is_read_or_refused(changes: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        config_from_hf(VALUES | changes, ModelConfig)
