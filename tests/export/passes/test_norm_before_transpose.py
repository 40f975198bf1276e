import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.passes.norm_before_transpose import NormBeforeTranspose

X = normal(2, 3, 2, 4, seed=1).numpy()
W = normal(4)

TEXT = """
g (float[b, s, 2, 4] x, WEIGHTS) => (float[A, C, D, E] y) {
    turned = Transpose <perm = [PERM]> (x)
    normed = NORM (turned, w)
    y = Neg (normed)
}
"""


def graph(perm: str = "0, 2, 1, 3", norm: str = "RMSNormalization <axis = -1>") -> str:
    return TEXT.replace("PERM", perm).replace("NORM", norm)


@pytest.mark.parametrize(
    "norm", ["RMSNormalization <axis = -1>", "LayerNormalization <axis = 3>", "RMSNormalization"]
)
def test_the_norm_of_moved_heads_comes_before_the_move(norm: str) -> None:
    model = rewritten(NormBeforeTranspose(), parsed(graph(norm=norm), w=W), {"w": W}, x=X)
    assert operators(model) == [norm.split()[0], "Transpose", "Neg"]
    assert [*map(str, model.graph[0].outputs[0].shape or ())] == ["b", "s", "2", "4"]


@pytest.mark.parametrize(
    "text",
    [graph(perm="3, 1, 2, 0"), graph(norm="RMSNormalization <axis = 2>")],
    ids=["the last axis moves", "the norm is over two axes"],
)
def test_what_does_not_commute_stays(text: str) -> None:
    assert_kept(NormBeforeTranspose(), parsed(text, w=W))
