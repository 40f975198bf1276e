"""Special tokens from a config and from generation_config.json."""

import json
from pathlib import Path

import pytest

from ortolan.export.errors import OptionError
from ortolan.export.source.special_tokens import special_tokens
from ortolan.runtime.bundle.manifest import Tokens

OWN = Tokens(bos=0, eos=(2,), pad=1)
GENERATION = "generation_config.json"


def read(
    folder: Path, values: dict[str, object], *, file: str = GENERATION, own: Tokens = OWN
) -> Tokens:
    (folder / file).write_text(json.dumps(values))
    return special_tokens(own, folder, vocab_size=97)


@pytest.mark.parametrize(
    ("values", "eos"), [({}, (2,)), ({"eos_token_id": None}, (2,)), ({"eos_token_id": 9}, (9,))]
)
def test_eos_comes_from_the_config_if_generation_config_has_none(
    values: dict[str, object], eos: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, values) == Tokens(bos=0, eos=eos, pad=1)


def test_bad_words_and_suppressed_tokens_are_never_chosen_but_an_eos_is(tmp_path: Path) -> None:
    values = {"eos_token_id": [2, 5], "bad_words_ids": [[7], [5], [9]], "suppress_tokens": [7, 4]}
    tokens = read(tmp_path, values)
    assert (tokens.eos, tokens.suppressed) == ((2, 5), (4, 7, 9))


def test_forced_tokens_and_the_start_belong_to_an_encoder_decoder(tmp_path: Path) -> None:
    values: dict[str, object] = {"decoder_start_token_id": 7, "forced_bos_token_id": 8}
    values["forced_eos_token_id"] = [9]
    tokens = read(tmp_path, values, own=Tokens(bos=0, eos=(2,), start=1))
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (7, 8, 9)
    tokens = read(tmp_path, values)
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (None, None, 9)


def test_old_checkpoints_have_them_in_config(tmp_path: Path) -> None:
    own = Tokens(bos=0, eos=(2,), start=1)
    values: dict[str, object] = {"forced_eos_token_id": 2, "bad_words_ids": [[5]]}
    expected = Tokens(bos=0, eos=(2,), start=1, forced_last=2, suppressed=(5,))
    assert read(tmp_path, values, file="config.json", own=own) == expected
    values["force_bos_token_to_be_generated"] = True
    assert read(tmp_path, values, file="config.json", own=own).forced_first == 0
    # Where there is a generation config, it counts alone, as in transformers.
    assert read(tmp_path, {"eos_token_id": 2}, own=own) == own


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"bad_words_ids": [[3, 4]]}, "bad_words_ids"),
        ({"forced_eos_token_id": [3, 4]}, "forced_eos_token_id"),
        ({"decoder_start_token_id": [3]}, "JSON object"),
        ({"eos_token_id": "</s>"}, "JSON object"),
        ({"eos_token_id": [2.5]}, "JSON object"),
        ({"eos_token_id": [2, 97]}, r"0 to 96 .*\[97\]"),
        ({"decoder_start_token_id": 97}, r"\[97\]"),
        ({"forced_bos_token_id": -1}, r"\[-1\]"),
        ({"forced_eos_token_id": 99}, r"\[99\]"),
        ({"suppress_tokens": [3, 98]}, r"\[98\]"),
    ],
)
def test_tokens_that_a_bundle_cannot_hold_are_errors(
    values: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=named):
        read(tmp_path, values, own=Tokens(bos=0, eos=(2,), start=1))


@pytest.mark.parametrize("own", [Tokens(bos=97), Tokens(pad=-1)])
def test_a_token_of_the_config_outside_the_vocabulary_is_an_error(own: Tokens) -> None:
    with pytest.raises(OptionError, match=r"\[97\]|\[-1\]"):
        special_tokens(own, None, vocab_size=97)


@pytest.mark.parametrize("contents", ["{", "[]", "\ud800", "[" * 100_000])
def test_a_file_that_cannot_be_read_is_an_error(contents: str, tmp_path: Path) -> None:
    (tmp_path / GENERATION).write_bytes(contents.encode(errors="surrogatepass"))
    with pytest.raises(OptionError, match=GENERATION):
        special_tokens(OWN, tmp_path, vocab_size=97)
