import onnx_ir as ir
import pytest
import torch
from tests.export.memory_weights import MemoryWeights
from torch import Tensor

from ortolan.export import derived
from ortolan.export.derived import DerivedWeights, Recipe, derive, recipes_of
from ortolan.export.values import add_initializer, static_shape


class Watched(MemoryWeights):
    """Records the largest read."""

    largest = 0

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        rows = super().rows(name, start, stop)
        self.largest = max(self.largest, rows.numel())
        return rows


A, B, BIAS = torch.arange(12.0).reshape(3, 4), torch.arange(20.0).reshape(5, 4), torch.arange(3.0)

RECIPES = {
    "joined": (Recipe(("a", "b")), torch.cat([A, B])),
    "turned": (Recipe(("a",), transposed=True), A.T),
    "turned and joined": (Recipe(("a", "a"), transposed=True), torch.cat([A.T, A.T])),
    "one more": (Recipe(("bias",), offset=1.0), BIAS + 1),
    "vectors": (Recipe(("bias", "bias")), torch.cat([BIAS, BIAS])),
    "of another": (Recipe(("joined", "a")), torch.cat([A, B, A])),
}


@pytest.mark.parametrize("name", ["a", *RECIPES])
def test_any_rows_of_what_a_recipe_makes_are_those_of_the_whole(name: str) -> None:
    recipes = {key: recipe for key, (recipe, _) in RECIPES.items()}
    weights = DerivedWeights(MemoryWeights(a=A, b=B, bias=BIAS), recipes)
    whole = A if name == "a" else RECIPES[name][1]
    assert weights.shape(name) == whole.shape
    for start in range(len(whole)):
        for stop in range(start + 1, len(whole) + 1):
            assert torch.equal(weights.rows(name, start, stop), whole[start:stop])


def test_a_number_is_added_in_float32() -> None:
    small = torch.tensor([0.001], dtype=torch.bfloat16)
    weights = DerivedWeights(MemoryWeights(w=small), {"x": Recipe(("w",), offset=1.0)})
    assert torch.equal(weights.rows("x", 0, 1), small.float() + 1)


def test_axes_are_swapped_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "READ_ELEMENTS", 8)
    source = Watched(w=torch.randn(50, 4))
    weights = DerivedWeights(source, {"x": Recipe(("w",), transposed=True)})
    assert torch.equal(weights.rows("x", 1, 3), source.tensors["w"].T[1:3])
    assert source.largest == 8


def graph_of(*names: str) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24})
    for rows, name in enumerate(names, start=2):
        add_initializer(graph, name, ir.DataType.FLOAT, (rows, 4))
    return graph


NAMES: dict[tuple[str, ...], str] = {
    ("layers.0.attn.q.weight", "layers.0.attn.k.weight"): "layers.0.attn.q+k.weight",
    ("layers.0.q", "layers.0.k"): "layers.0.q+k",
    ("a.b.weight", "c.weight"): "a.b+c.weight",
    ("x.q.weight", "x.q.extra.weight"): "x.q+q.extra.weight",
    ("p", "q"): "p+q",
}


@pytest.mark.parametrize("parts", NAMES)
def test_a_joined_weight_is_named_after_its_parts(parts: tuple[str, ...]) -> None:
    graph = graph_of(*parts)
    value = derive(graph, [graph.initializers[part] for part in parts])
    assert value.name == NAMES[parts]
    assert static_shape(value) == (5, 4)
    assert value.dtype == ir.DataType.FLOAT


def test_recipes_are_found_in_the_graph_and_read_the_same_shapes() -> None:
    graph = graph_of("a.weight", "b.weight")
    values = list(graph.initializers.values())
    turned = [derive(graph, [value], transposed=True) for value in values[:1]]
    joined = derive(graph, values)
    more = derive(graph, [joined], offset=1.0)
    del graph.initializers["a+b.weight"]  # which no node reads
    recipes = recipes_of([ir.Model(graph, ir_version=10)])
    assert recipes == {
        "a.T.weight": Recipe(("a.weight",), transposed=True),
        "a+b.weight": Recipe(("a.weight", "b.weight")),
        "a+b.plus_1.weight": Recipe(("a+b.weight",), offset=1.0),
    }
    source = MemoryWeights(**{"a.weight": torch.zeros(2, 4), "b.weight": torch.zeros(3, 4)})
    weights = DerivedWeights(source, recipes)
    for value in (*turned, joined, more):
        assert weights.shape(value.name or "") == static_shape(value)
