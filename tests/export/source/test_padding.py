"""The padding of texts that an encoder reads like other tokens."""

import json
from pathlib import Path

import pytest
from tests.export import tiny_contrast

from ortolan.export.errors import OptionError
from ortolan.export.source.padding import CONFIG, SPECIAL, padding_id
from ortolan.runtime.inputs.tokenizer import Tokenizer

LIBRARY = tiny_contrast.tokenizer("siglip")

TOKENIZER = Tokenizer.from_bytes(LIBRARY.to_str().encode())


@pytest.mark.parametrize(
    ("files", "token"),
    [
        ({CONFIG: "<pad>"}, "<pad>"),
        ({CONFIG: {"content": "</s>", "special": True}}, "</s>"),
        ({CONFIG: None, SPECIAL: "</s>"}, "</s>"),
        ({SPECIAL: {"content": "<pad>"}}, "<pad>"),
        ({CONFIG: "<pad>", SPECIAL: "</s>"}, "<pad>"),
    ],
)
def test_the_tokenizer_names_it(files: dict[str, object], token: str, tmp_path: Path) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps({"pad_token": value}))
    assert padding_id(TOKENIZER, tmp_path, 7) == LIBRARY.token_to_id(token)


def test_without_its_files_the_config_does(tmp_path: Path) -> None:
    assert padding_id(TOKENIZER, tmp_path, 7) == 7
    assert padding_id(None, None, 0) == 0
    with pytest.raises(OptionError, match="Set pad_token_id"):
        padding_id(None, None, None)


@pytest.mark.parametrize("content", ["{", "[]", '{"pad_token": 3}'])
def test_a_damaged_file_is_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(OptionError, match="JSON object with pad_token"):
        padding_id(TOKENIZER, tmp_path, 7)


def test_several_tokens_are_no_padding(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"pad_token": "pad"}')
    with pytest.raises(OptionError, match="which is 3"):
        padding_id(TOKENIZER, tmp_path, 7)
