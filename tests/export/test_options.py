from typing import Any

import pytest

from ortolan.export.errors import OptionError
from ortolan.export.options import Form, Kind, Rounding, resolve

FORM = Form(
    device="cpu",
    precision="fp32",
    graphs="unified",
    attention="fused",
    prefill_precision=None,
    attention_maps=False,
    allow_cpu_nodes=False,
)
INT4 = FORM._replace(precision="int4")
ROUNDING = Rounding(None, None, asymmetric=False, head_bits=None, exclude=())


@pytest.mark.parametrize(
    ("kind", "can_calibrate", "method", "head_bits"),
    [
        ("decoder", True, "gptq", 4),
        ("encoder-decoder", True, "gptq", 4),
        ("encoder", True, "gptq", 8),
        ("decoder", False, "hqq", 8),
    ],
)
def test_default_of_int4_is_calibrated_where_it_can_be(
    kind: Kind, can_calibrate: bool, method: str, head_bits: int
) -> None:
    options = resolve(kind, INT4, ROUNDING, max_kl=None, can_calibrate=can_calibrate)
    assert options.quantization is not None
    assert (options.quantization.method, options.quantization.head.bits) == (method, head_bits)


def test_head_of_an_encoder_has_the_bits_that_were_asked_for() -> None:
    rounding = ROUNDING._replace(head_bits=4)
    options = resolve("encoder", INT4, rounding, max_kl=None, can_calibrate=True)
    assert options.quantization is not None
    assert options.quantization.head.bits == 4


@pytest.mark.parametrize(
    ("wanted", "rounding", "blocks", "head"),
    [
        ({}, {}, 256, 128),
        ({}, {"method": "rtn"}, 128, 128),
        ({}, {"method": "rtn", "head_bits": 4}, 256, 128),
        ({}, {"head_bits": 8}, 128, 128),
        ({}, {"group_size": 64}, 64, 64),
        ({}, {"group_size": 256}, 256, 256),
        ({"precision": "int8"}, {}, 128, 128),
        ({"device": "cuda"}, {}, 128, 128),
    ],
)
def test_groups_of_blocks_are_the_largest_below_a_head_of_4_bits(
    wanted: dict[str, Any], rounding: dict[str, Any], blocks: int, head: int
) -> None:
    form, asked = INT4._replace(**wanted), ROUNDING._replace(**rounding)
    options = resolve("decoder", form, asked, max_kl=None, can_calibrate=True)
    assert options.quantization is not None
    assert options.quantization.scheme.group == blocks
    assert options.quantization.head.group == head
    assert options.quantization.fits == ("group_size" not in rounding)


def test_group_that_a_device_has_no_kernel_for_is_refused() -> None:
    form, asked = INT4._replace(device="cuda"), ROUNDING._replace(group_size=256)
    with pytest.raises(
        OptionError, match=r"^group size: expected at most 128 for .* cuda.*got 256"
    ):
        resolve("decoder", form, asked, max_kl=None, can_calibrate=True)


@pytest.mark.parametrize(
    ("wanted", "devices", "is_proven"),
    [
        ({"precision": "fp16"}, ("cpu",), True),
        ({"precision": "int4"}, ("cpu",), True),
        ({"device": "cuda", "precision": "fp16"}, ("cuda", "cpu"), True),
        ({"device": "cuda", "precision": "int8"}, ("cuda", "cpu"), True),
        ({"device": "cuda", "precision": "bf16"}, ("cuda",), False),
    ],
)
def test_devices_are_those_that_compute_the_graphs(
    wanted: dict[str, Any], devices: tuple[str, ...], is_proven: bool
) -> None:
    form = FORM._replace(**wanted)
    options = resolve("decoder", form, ROUNDING, max_kl=None, can_calibrate=False)
    assert options.devices == devices
    assert (options.unverified is None) == is_proven


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"device": "tpu"}, "device: expected one of cpu, cuda, got 'tpu'"),
        ({"device": "cuda"}, "expected one of fp16, bf16, int8, int4 for the device cuda, .* fp32"),
        ({"precision": "bf16"}, "for the device cpu, .* got bf16. .* or --device cuda"),
        ({"allow_cpu_nodes": True}, "allow_cpu_nodes: expected another device .* got cpu"),
        (
            {
                "device": "cuda",
                "precision": "int4",
                "graphs": "split",
                "prefill_precision": "int8",
            },
            "prefill precision: expected the device cpu, got cuda",
        ),
    ],
)
def test_what_a_device_has_no_kernel_for_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve("decoder", FORM._replace(**wanted), ROUNDING, max_kl=None, can_calibrate=False)


def test_a_translator_can_be_split_and_an_encoder_cannot() -> None:
    form = FORM._replace(graphs="split")
    options = resolve("encoder-decoder", form, ROUNDING, max_kl=None, can_calibrate=False)
    sequences = {role: graph.sequence for role, graph in options.graph_files.items()}
    assert sequences == {"encoder": None, "prefill": None, "decode": 1}
    with pytest.raises(OptionError, match="graphs: expected unified for an encoder, got split"):
        resolve("encoder", form, ROUNDING, max_kl=None, can_calibrate=False)


def test_int8_products_of_a_translator_are_those_of_its_encoder() -> None:
    form = FORM._replace(graphs="split", precision="int8", prefill_precision="int8")
    options = resolve("encoder-decoder", form, ROUNDING, max_kl=None, can_calibrate=False)
    assert options.graph_files["prefill"].min_new_tokens == 2
    assert options.graph_files["decode"].sequence == 1
