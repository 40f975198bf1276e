from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

import kernel_forms


@pytest.mark.parametrize(
    "case",
    [
        kernel_forms.norm(2, 8),
        kernel_forms.gelu(2, 8),
        kernel_forms.product(2, 16, 8),
        kernel_forms.attention(1, 3, 5, 4, 2, 8),
        kernel_forms.attention(3, 1, 5, 4, 2, 8),
    ],
)
def test_row_has_both_times_and_their_ratio(
    case: kernel_forms.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_forms, "PAUSE_S", 0)
    size, first, second, ratio = kernel_forms.row(case, threads=1, rounds=1)
    assert size == case.size
    assert float(first) > 0
    assert float(second) > 0
    assert float(ratio) > 0


def test_forms_that_differ_are_an_error() -> None:
    case = kernel_forms.norm(2, 8)
    wrong = deepcopy(case.forms[1])
    wrong[0].op_type = "Sub"
    with pytest.raises(ValueError, match="2x8: x16: the forms differ by"):
        kernel_forms.row(replace(case, forms=(case.forms[0], wrong)), threads=1, rounds=1)


@pytest.mark.parametrize("form", [0, 1])
def test_attention_writes_keys_into_the_cache_it_reads(form: int) -> None:
    case = kernel_forms.attention(1, 3, 5, 4, 2, 8)
    bound = kernel_forms.bind(case, form, threads=1)
    bound.seconds(1)
    key = bound.inputs["past_key"]
    assert bound.outputs["key0"] is key
    new = case.inputs["packed"][0, :, 32:48].reshape(3, 2, 8).transpose(1, 0, 2)
    np.testing.assert_array_equal(key[0, :, 5:], new)
    np.testing.assert_array_equal(key[0, :, :5], case.inputs["past_key"][0, :, :5])
