import pytest
from tests.export import tiny_models

from ortolan.export.errors import OptionError
from ortolan.export.probes import LENGTHS, TEXT, make_probes
from ortolan.runtime.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_bytes(tiny_models.tokenizer().to_str().encode(), model_vocab_size=97)


def test_random_probes_are_the_same_every_time_and_within_the_vocabulary() -> None:
    one, other = (make_probes(vocab_size=11, context_length=1000, tokenizer=None) for _ in range(2))
    assert [probe.token_ids.tolist() for probe in one] == [p.token_ids.tolist() for p in other]
    assert tuple(len(probe.token_ids) for probe in one) == LENGTHS
    assert {int(i) for probe in one for i in probe.token_ids} == set(range(11))
    assert len({probe.name for probe in one}) == len(LENGTHS)


def test_probes_are_cut_from_the_built_in_text(tokenizer: Tokenizer) -> None:
    probes = make_probes(vocab_size=97, context_length=1000, tokenizer=tokenizer)
    assert tuple(len(probe.token_ids) for probe in probes) == LENGTHS
    joined = [int(i) for probe in probes for i in probe.token_ids]
    assert joined == list(tokenizer.encode(TEXT))[: len(joined)]


def test_probes_are_cut_from_the_given_text(tokenizer: Tokenizer) -> None:
    text = "".join(chr(65 + i % 26) for i in range(600))
    probes = make_probes(vocab_size=97, context_length=1000, tokenizer=tokenizer, text=text)
    assert probes[3].token_ids.tolist() == list(tokenizer.encode(text))[8:24]
    # The longest does not fit behind the others: it starts over.
    assert probes[-1].token_ids.tolist() == list(tokenizer.encode(text))[:512]


def test_no_probe_is_longer_than_the_context(tokenizer: Tokenizer) -> None:
    for given in (None, tokenizer):
        probes = make_probes(vocab_size=97, context_length=40, tokenizer=given)
        assert [len(probe.token_ids) for probe in probes] == [1, 2, 5, 16, 33, 40, 40, 40]


def test_text_as_long_as_the_longest_probe_is_enough(tokenizer: Tokenizer) -> None:
    probes = make_probes(vocab_size=97, context_length=20, tokenizer=tokenizer, text="x" * 20)
    assert len(probes[-1].token_ids) == 20
    with pytest.raises(OptionError, match=r"notes: expected .* at least 20 .* got 19"):
        make_probes(
            vocab_size=97, context_length=20, tokenizer=tokenizer, text="x" * 19, origin="notes"
        )
