import json
from pathlib import Path
from typing import Any

import pytest

from ortolan.export.errors import OptionError
from ortolan.export.source.token_types import has_types

NAMES = ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("values", "model_type", "expected"),
    [
        (None, "bert", True),
        (None, "albert", False),
        ({}, "electra", True),
        ({"tokenizer_class": "BertTokenizerFast"}, "albert", True),
        ({"tokenizer_class": "TokenizersBackend"}, "bert", False),
        ({"tokenizer_class": "DistilBertTokenizer"}, "bert", False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": NAMES}, "bert", False),
        ({"model_input_names": [*NAMES, "token_type_ids"]}, "albert", True),
    ],
)
def test_the_names_of_inputs_or_the_class_of_a_tokenizer_decide(
    values: dict[str, Any] | None, model_type: str, expected: bool, tmp_path: Path
) -> None:
    if values is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    assert has_types(tmp_path, model_type) == expected


def test_a_config_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_input_names": 3}')
    with pytest.raises(OptionError, match="model_input_names"):
        has_types(tmp_path, "bert")
