import numpy as np
import pytest
from tests.export.passes.graphs import assert_kept, operators, parsed, rewritten

from ortolan.export.passes import FoldCasts

GRAPH = "g (int64[n] x, float[n] f) => (float[n] y) {{ {} }}"

FOLDED = {
    "cast": "one = Constant <value_int = 3> () c = Cast <to = 1> (one) y = Mul (f, c)",
    "like": "one = Constant <value_int = 3> () c = CastLike (one, f) y = Mul (f, c)",
    "vector": "one = Constant <value_ints = [3]> () c = CastLike (one, f) y = Mul (f, c)",
}

KEPT = {
    "no constant": "c = Cast <to = 1> (x) y = Mul (f, c)",
    "unknown type": "o = Constant <value_int = 3> () y = CastLike (o, l)",
    "long": f"o = Constant <value_ints = [{', '.join('123456789')}]> () y = Cast <to = 1> (o)",
}


@pytest.mark.parametrize("name", FOLDED)
def test_constant_takes_the_type_of_its_readers(name: str) -> None:
    model = rewritten(
        FoldCasts(), parsed(GRAPH.format(FOLDED[name])), x=np.arange(4), f=np.arange(4, dtype="f")
    )
    assert operators(model) == ["Constant", "Mul"]
    constant = model.graph[0].attributes.get_tensor("value")
    assert (constant.dtype.name, constant.numpy().item()) == ("FLOAT", 3.0)


@pytest.mark.parametrize("name", KEPT)
def test_other_casts_stay(name: str) -> None:
    model = parsed(GRAPH.format(f"l = Mul (f, f) {KEPT[name]}"))
    model.graph[0].outputs[0].type = None
    assert_kept(FoldCasts(), model)
