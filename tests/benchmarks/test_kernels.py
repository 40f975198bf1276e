import os
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

import kernels


@pytest.mark.parametrize(
    "case", [kernels.norm(2, 8), kernels.gelu(2, 8), kernels.attention(3, 5, 4, 2, 8)]
)
def test_row_has_both_times_and_their_ratio(
    case: kernels.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PAUSE_S", 0)
    size, first, second, ratio = kernels.row(case, threads=1, rounds=1)
    assert size == case.size
    assert float(first) > 0
    assert float(second) > 0
    assert float(ratio) > 0


def test_forms_that_differ_are_an_error() -> None:
    case = kernels.norm(2, 8)
    wrong = deepcopy(case.forms[1])
    wrong[0].op_type = "Sub"
    with pytest.raises(ValueError, match="2x8: x16: expected equal outputs"):
        kernels.row(replace(case, forms=(case.forms[0], wrong)), threads=1, rounds=1)


@pytest.mark.parametrize("form", [0, 1])
def test_attention_writes_keys_into_the_cache_it_reads(form: int) -> None:
    case = kernels.attention(3, 5, 4, 2, 8)
    bound = kernels.bind(case, form, threads=1)
    bound.seconds(1)
    key = bound.inputs["past_key"]
    assert bound.outputs["key0"] is key
    new = case.inputs["packed"][0, :, 32:48].reshape(3, 2, 8).transpose(1, 0, 2)
    np.testing.assert_array_equal(key[0, :, 5:], new)
    np.testing.assert_array_equal(key[0, :, :5], case.inputs["past_key"][0, :, :5])


@pytest.mark.parametrize("before", [None, "1"])
def test_switch_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    if before is not None:
        monkeypatch.setenv(kernels.SWITCH, before)
    with kernels.switched("0"):
        assert os.environ[kernels.SWITCH] == "0"
    assert os.environ.get(kernels.SWITCH) == before
