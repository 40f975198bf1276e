import json
from pathlib import Path

import pytest

import peers
import prepare
from catalog import ORTOLAN, TRANSFORMERS


def test_peers_are_chosen_by_precision_and_by_name_in_the_order_named() -> None:
    assert {peer.name for peer in peers.chosen(None, "fp32")} == {
        *("ortolan", "onnxruntime-genai", "onnxruntime-genai-pruned"),
        *("llama.cpp", "openvino-genai", "transformers"),
    }
    named = peers.chosen(["llama.cpp", "ortolan-split"], "int4")
    assert [peer.name for peer in named] == ["llama.cpp", "ortolan-split"]
    with pytest.raises(ValueError, match="unknown transformers"):
        peers.chosen(["transformers"], "int4")


def test_prompt_is_reproducible_and_fits_the_context(tmp_path: Path) -> None:
    config = {"vocab_size": 10, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    first, second = (peers.make_prompt(tmp_path, tokens=384, new_tokens=128) for _ in range(2))
    assert first == second
    # Without the special ids 0 to 2.
    assert set(first) == set(range(3, 10))
    with pytest.raises(ValueError, match=r"512 tokens, less than 385 \+ 128"):
        peers.make_prompt(tmp_path, tokens=385, new_tokens=128)


def test_peers_without_an_environment_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "ENVIRONMENTS", tmp_path)
    assert prepare.is_installed(ORTOLAN)
    assert not prepare.is_installed(TRANSFORMERS)
    stamp = tmp_path / "transformers" / prepare.STAMP
    stamp.parent.mkdir()
    stamp.write_text("older requirements")
    assert not prepare.is_installed(TRANSFORMERS)
    stamp.write_text(prepare.identity(TRANSFORMERS))
    assert prepare.is_installed(TRANSFORMERS)
