"""Low-bit encoders and encoder-decoders, with CPU kernels and standard operators."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tests.export.graph_runs import Steps, run, sessions
from tests.modeling import kinds

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.modeling import EncoderDecoderModel, EncoderModel
from ortolan.modeling.config import LanguageModelHead
from ortolan.runtime import Bundle
from ortolan.runtime.engine.engine import Engine

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(0).integers(0, kinds.VOCAB, (3, 9))

LENGTHS = np.array([9, 2, 5], np.int32)


def encoder() -> EncoderModel:
    head = LanguageModelHead(tied=True, bias=True)
    config = kinds.encoder_config(kinds.POSITIONS["learned"], head=head)
    return kinds.randomised(EncoderModel(config)).eval()


def seq2seq() -> EncoderDecoderModel:
    config = kinds.seq2seq_config(kinds.POSITIONS["relative-bias"], depth=1)
    return kinds.randomised(EncoderDecoderModel(config)).eval()


BOUND = ExportOptions(max_kl=5.0)
PRODUCTS = replace(BOUND, prefill_precision="int8")

FORMS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "encoder-int8": {"precision": "int8", "options": BOUND},
    "encoder-int4": {
        "precision": Int4(method="rtn", group_size=32, asymmetric=True),
        "options": BOUND,
    },
    "encoder-products": {"precision": "int8", "options": PRODUCTS},
    "encoder-portable": {"precision": "int8", "options": replace(BOUND, attention="portable")},
    "seq2seq": {},
    "seq2seq-int8": {"precision": "int8", "options": replace(BOUND, attention_maps=True)},
    "seq2seq-int4": {
        "precision": Int4(method="rtn"),
        "options": BOUND,
    },
    "seq2seq-products": {"precision": "int8", "options": replace(PRODUCTS, attention_maps=True)},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    @cache
    def export(name: str) -> Bundle:
        module = encoder() if name.startswith("encoder") else seq2seq()
        out = tmp_path_factory.mktemp("bundles") / name
        return ortolan.export(module, out, **FORMS[name])

    return export


def outputs(bundle: Bundle) -> NDArray[np.float32]:
    """Logits of every valid token."""
    graphs = sessions(bundle)
    given: dict[str, NDArray[Any]] = {"input_ids": IDS, "lengths": LENGTHS}
    first = run(graphs["encoder"], given)
    if bundle.manifest.kind == "encoder":
        return np.concatenate([first["output"][row, :n] for row, n in enumerate(LENGTHS)])
    steps = Steps(graphs["decoder"], len(IDS), {**first, "source_lengths": LENGTHS})
    pieces = [steps(IDS[:, :4], [4] * 3), steps(IDS[:, 4:5], [1] * 3)]
    logits: NDArray[np.float32] = np.concatenate(pieces, 1)
    return logits


def nodes(bundle: Bundle, role: str) -> Counter[str]:
    graph = onnx.load(str(bundle.file(bundle.manifest.graphs[role].file)), load_external_data=False)
    return Counter(node.op_type for node in graph.graph.node)


def initializers(bundle: Bundle) -> set[str]:
    files = [bundle.file(graph.file) for graph in bundle.manifest.graphs.values()]
    graphs = [onnx.load(str(file), load_external_data=False).graph for file in files]
    return {tensor.name for graph in graphs for tensor in graph.initializer}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("seq2seq") else ())
        for name in FORMS
        if "-" in name
    ],
)
def test_few_bits_give_nearly_the_same_numbers(
    name: str, exported: Callable[[str], Bundle]
) -> None:
    wanted = outputs(exported(name.partition("-")[0]))
    got = outputs(exported(name))
    off = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    # 4 bits of these random weights are off by a tenth in every layer; float weights by 1e-6, and
    # wrong weights by 1 and more.
    assert 1e-4 < off < (0.6 if "int4" in name else 0.05)


@pytest.mark.slow
def test_table_that_both_sides_and_the_head_share_is_stored_once(
    exported: Callable[[str], Bundle],
) -> None:
    bundle = exported("seq2seq-int8")
    tables = {name for name in initializers(bundle) if "shared" in name or "embedding" in name}
    assert tables == {f"shared.weight.{part}" for part in ("codes", "table", "scales")}
    places = {
        (tensor.offset, tensor.length)
        for graph in bundle.graphs.values()
        for tensor in graph.external
        if tensor.name in ("shared.weight.codes", "shared.weight.table")
    }
    assert len(places) == 1
    assert {t.bits for t in bundle.manifest.quantized if t.name == "shared.weight"} == {8}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("encoder-products", 8),
        pytest.param("seq2seq-products", 5, marks=pytest.mark.slow),
    ],
)
def test_products_of_integers_are_all_that_an_encoder_reads(
    name: str, layers: int, exported: Callable[[str], Bundle]
) -> None:
    bundle = exported(name)
    operators = nodes(bundle, "encoder")
    assert operators["MatMulIntegerToFloat"] == layers
    # The tied head is unchanged; each bias is added after its product.
    assert operators["MatMulNBits"] == (1 if name.startswith("encoder") else 0)
    held = [tensor.name for tensor in bundle.manifest.quantized]
    assert len(held) == len(set(held))
    if name.startswith("seq2seq"):
        assert nodes(bundle, "decoder")["MatMulIntegerToFloat"] == 0
        assert nodes(bundle, "attention")["MatMulIntegerToFloat"] == layers


def test_sources_of_a_batch_are_read_through_integers_as_each_is_alone(
    exported: Callable[[str], Bundle],
) -> None:
    engine = Engine(exported("seq2seq-products"), threads=1)
    feeds: dict[str, NDArray[Any]] = {"input_ids": IDS, "lengths": LENGTHS}
    together = engine.encode_sources(feeds)
    for row, length in enumerate(LENGTHS):
        ids, own_length = IDS[row : row + 1, :length], LENGTHS[row : row + 1]
        alone = engine.encode_source({"input_ids": ids, "lengths": own_length})
        for all_, own in zip(together.states, alone.states, strict=True):
            np.testing.assert_allclose(all_[row, :, :length], own[0], atol=1e-5)
