import json
from pathlib import Path
from typing import Any

import pytest

from ortolan.export.errors import OptionError
from ortolan.export.source.special_tokens import special_tokens
from ortolan.runtime.bundle.manifest import Tokens

OWN = Tokens(bos=1, eos=(2,))


def written(folder: Path, **values: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_bad_words_and_suppressed_tokens_are_never_chosen_but_an_end_is(tmp_path: Path) -> None:
    folder = written(
        tmp_path, eos_token_id=[2, 5], bad_words_ids=[[7], [5], [9]], suppress_tokens=[4]
    )
    tokens = special_tokens(OWN, folder, vocab_size=97)
    assert tokens.eos == (2, 5)
    assert tokens.suppressed == (4, 7, 9)


def test_a_bad_word_of_several_tokens_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, bad_words_ids=[[7, 8]])
    with pytest.raises(OptionError, match="bad_words_ids of one token"):
        special_tokens(OWN, folder, vocab_size=97)
