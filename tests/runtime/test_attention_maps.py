from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.tiny_encoder import HEADS, MAX_TOKENS, TinyEncoder

from ortolan.runtime import attention_maps as module
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.errors import ContextLengthError, NumericError, TokenizerError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEncoder:
    return tiny_encoder.write_bundle(tmp_path_factory.mktemp("maps") / "bundle", maps=True)


def test_maps_equal_the_reference_and_are_labeled_with_tokens(tiny: TinyEncoder) -> None:
    result = attention_maps(tiny.path, "a b c", threads=1)
    assert list(result.maps) == ["encoder.0.self"]
    probabilities = result.maps["encoder.0.self"]
    assert probabilities.shape == (HEADS, 5, 5)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, tiny.map_reference([2, 4, 5, 6, 3]), atol=1e-5)
    assert result.queries == {"encoder.0.self": ("[CLS]", "a", "b", "c", "[SEP]")}
    assert result.keys == result.queries


def test_ids_get_no_special_tokens(tiny: TinyEncoder) -> None:
    result = attention_maps(open_bundle(tiny.path), [4, 5], threads=1)
    assert result.keys["encoder.0.self"] == ("a", "b")
    np.testing.assert_allclose(result.maps["encoder.0.self"], tiny.map_reference([4, 5]), atol=1e-5)


def test_without_a_tokenizer_labels_are_ids(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "ids", maps=True, tokenizer=False).path

    assert attention_maps(path, [4, 5], threads=1).keys["encoder.0.self"] == ("4", "5")
    with pytest.raises(TokenizerError):
        attention_maps(path, "a", threads=1)


@pytest.mark.parametrize(
    ("text", "options"),
    [("a", {"target": "b"}), ("", {}), ("a " * MAX_TOKENS, {}), ([99], {})],
    ids=["target", "empty", "long", "unknown id"],
)
def test_a_wrong_text_is_refused(
    tiny: TinyEncoder, text: Any, options: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: attention_maps(tiny.path, text, threads=1, **options)) == snapshot


def test_too_many_tokens_for_maps_are_refused(
    tiny: TinyEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MAP_TOKENS", 4)
    attention_maps(tiny.path, "a b", threads=1)

    with pytest.raises(ContextLengthError, match="5 tokens, and the limit is 4"):
        attention_maps(tiny.path, "a b c", threads=1)


def test_non_finite_maps_are_refused(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "poisoned", maps=True, poisoned=9).path

    with pytest.raises(NumericError, match=r"encoder\.0\.self"):
        attention_maps(path, [4, 9], threads=1)
