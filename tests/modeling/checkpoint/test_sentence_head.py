"""Folders of sentence-transformers: a checkpoint, and which vector embeds a text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_encoders import ENCODERS, ragged, reference_output
from tests.modeling.tiny_models import assert_same_logits
from torch.nn import functional
from transformers import AutoModel

from ortolan.modeling import CheckpointError, ConfigError, EncoderConfig, EncoderModel, load, save
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.config import EmbeddingHead

TEXTS = ragged(9, 1, 16, 4)

MINI_LM_POOLING = {
    "word_embedding_dimension": 384,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}
"""As sentence-transformers/all-MiniLM-L6-v2 has it."""

FIRST = MINI_LM_POOLING | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def modules(*names: str, path: str = "1_Pooling") -> list[dict[str, Any]]:
    paths = ["", path, *(f"{i}_{name}" for i, name in enumerate(names) if i > 1)]
    return [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]


ALL = modules("Transformer", "Pooling", "Normalize")


def written(folder: Path, listed: object = ALL, pooling: object = MINI_LM_POOLING) -> Path:
    ENCODERS["bert"].reference().save_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_folder_gives_the_embeddings_of_its_model_card(
    pooling: str, normalised: bool, tmp_path: Path
) -> None:
    listed = ALL if normalised else ALL[:2]
    written(tmp_path, listed, MINI_LM_POOLING if pooling == "mean" else FIRST)
    # The code of the model cards: mean_pooling, then F.normalize.
    reference = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    states = reference_output(reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask)
    mask = TEXTS.mask.unsqueeze(-1).expand(states.size()).float()
    mean = torch.sum(states * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
    expected = mean if pooling == "mean" else states[:, 0]
    expected = functional.normalize(expected, p=2, dim=1) if normalised else expected
    with torch.inference_mode():
        assert_same_logits(load(tmp_path, EncoderModel)(TEXTS.ids, TEXTS.lengths), expected)


@pytest.mark.parametrize("pooling", [MINI_LM_POOLING, FIRST])
@pytest.mark.parametrize("listed", [ALL, ALL[:2]])
def test_an_embedding_reads_the_same_after_we_wrote_it(
    pooling: object, listed: object, tmp_path: Path
) -> None:
    module = load(written(tmp_path / "source", listed, pooling), EncoderModel)
    save(module, tmp_path / "saved")
    again = load(tmp_path / "saved", EncoderModel)
    assert again.config == module.config
    assert isinstance(again.config.head, EmbeddingHead)
    theirs, ours = (tmp_path / name for name in ("source", "saved"))
    assert json.loads((ours / "modules.json").read_text()) == listed
    modes = [json.loads((at / "1_Pooling/config.json").read_text()) for at in (theirs, ours)]
    on = [{key for key, value in mode.items() if value is True} for mode in modes]
    assert on[0] == on[1]
    assert modes[1]["word_embedding_dimension"] == 32


def test_vectors_of_tokens_written_over_an_embedding_are_read_as_such(tmp_path: Path) -> None:
    ENCODERS["bert"].reference().save_pretrained(tmp_path / "plain")
    plain = load(tmp_path / "plain", EncoderModel)
    save(plain, written(tmp_path / "sentence"))
    assert read_config(tmp_path / "sentence", EncoderConfig).head is None


def test_another_head_does_not_mind_the_file(tmp_path: Path) -> None:
    ENCODERS["bert-masked"].reference().save_pretrained(tmp_path)
    before = read_config(tmp_path, EncoderConfig)
    (tmp_path / "modules.json").write_text(json.dumps(ALL))
    assert read_config(tmp_path, EncoderConfig) == before


@pytest.mark.parametrize(
    "listed",
    [
        modules("Transformer"),
        modules("Transformer", "Normalize"),
        modules("Transformer", "Pooling", "Dense"),
        modules("WordEmbeddings", "Pooling"),
        {},
        [1, 2],
        None,
    ],
)
def test_modules_that_are_not_served_are_an_error(listed: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"modules\.json: expected Transformer, Pooling"):
        read_config(written(tmp_path, listed), EncoderConfig)


@pytest.mark.parametrize(
    "pooling",
    [
        {},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True},
        {"pooling_mode": "mean"},
    ],
)
def test_a_pooling_that_is_not_served_is_an_error(pooling: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1_Pooling/config\.json: expected one of"):
        read_config(written(tmp_path, ALL, pooling), EncoderConfig)


@pytest.mark.parametrize("path", ["../1_Pooling", "..", "", "/etc", "1_Pooling/", "."])
def test_a_pooling_outside_of_the_folder_is_an_error(path: str, tmp_path: Path) -> None:
    listed = modules("Transformer", "Pooling", path=path)
    with pytest.raises(CheckpointError, match="expected the name of a folder beside it"):
        read_config(written(tmp_path, listed), EncoderConfig)


def test_a_pooling_that_was_not_fetched_is_an_error(tmp_path: Path) -> None:
    (written(tmp_path) / "1_Pooling/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"expected 1_Pooling/config\.json beside it"):
        read_config(tmp_path, EncoderConfig)


def test_the_hash_of_a_checkpoint_knows_its_embedding(tmp_path: Path) -> None:
    digests = {open_checkpoint(written(tmp_path / "source")).sha256()}
    (tmp_path / "source/1_Pooling/config.json").write_text(json.dumps(FIRST))
    digests.add(open_checkpoint(tmp_path / "source").sha256())
    (tmp_path / "source/modules.json").write_text(json.dumps(ALL[:2]))
    digests.add(open_checkpoint(tmp_path / "source").sha256())
    (tmp_path / "source/modules.json").unlink()
    digests.add(open_checkpoint(tmp_path / "source").sha256())
    assert len(digests) == 4
