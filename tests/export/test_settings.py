from typing import Any

import pytest

from ortolan.export.errors import OptionError
from ortolan.export.options import Device, ExportOptions
from ortolan.export.options import Auto, Int4, Int8
from ortolan.export.settings import resolve


@pytest.mark.parametrize(
    ("kind", "precision", "method", "head_bits"),
    [
        ("decoder", Int4(), "gptq", 4),
        ("encoder-decoder", Int4(), "gptq", 4),
        ("encoder", Int4(), "gptq", 8),
        ("decoder", Int4(method="hqq"), "hqq", 8),
        ("decoder", Int8(), "rtn", 8),
    ],
)
def test_default_of_int4_is_calibrated(
    kind: str, precision: Int4 | Int8, method: str, head_bits: int
) -> None:
    found = resolve(kind, precision=precision).quantization
    assert found is not None
    assert (found.method, found.head.bits) == (method, head_bits)


def test_head_of_an_encoder_has_the_given_bits() -> None:
    found = resolve("encoder", precision=Int4(head_bits=4)).quantization
    assert found is not None
    assert found.head.bits == 4


@pytest.mark.parametrize(
    ("precision", "device", "blocks", "head"),
    [
        (Int4(), "cpu", 256, 128),
        (Int4(method="rtn"), "cpu", 128, 128),
        (Int4(method="rtn", head_bits=4), "cpu", 256, 128),
        (Int4(head_bits=8), "cpu", 128, 128),
        (Int4(group_size=64), "cpu", 64, 64),
        (Int4(group_size=256), "cpu", 256, 256),
        (Int4(group_size=64, head_bits=8), "cpu", 64, 128),
        (Int4(method="hqq", group_size=32), "cpu", 32, 128),
        (Int8(), "cpu", 128, 128),
        (Int8(group_size=64), "cpu", 64, 64),
        (Int4(), "cuda", 128, 128),
    ],
)
def test_groups_of_blocks_are_the_largest_below_a_head_of_4_bits_and_8_bits_have_their_own(
    precision: Int4 | Int8, device: Device, blocks: int, head: int
) -> None:
    found = resolve("decoder", precision=precision, device=device).quantization
    assert found is not None
    assert found.scheme.group == blocks
    assert found.head.group == head
    assert found.fits == (precision.group_size is None)


def test_group_that_a_device_has_no_kernel_for_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"^group size: expected at most 128 for .* cuda.*got 256"
    ):
        resolve("decoder", precision=Int4(group_size=256), device="cuda")


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
    settings = resolve("decoder", **wanted)
    assert settings.devices == devices
    assert (settings.unverified is None) == is_proven


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"device": "tpu"}, "device: expected one of cpu, cuda, got 'tpu'"),
        ({"device": "cuda"}, "expected one of fp16, bf16, int8, int4 for the device cuda, .* fp32"),
        ({"precision": "bf16"}, "for the device cpu, .* got bf16. .* or --device cuda"),
        (
            {"options": ExportOptions(allow_cpu_nodes=True)},
            "allow_cpu_nodes: expected another device .* got cpu",
        ),
        (
            {
                "device": "cuda",
                "precision": "int4",
                "options": ExportOptions(graphs="split", prefill_precision="int8"),
            },
            "prefill precision: expected the device cpu, got cuda",
        ),
    ],
)
def test_what_a_device_has_no_kernel_for_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve("decoder", **wanted)


def test_products_of_int8_ask_for_what_is_missing_alone() -> None:
    options = ExportOptions(prefill_precision="int8")
    with pytest.raises(OptionError, match=r"Add --graphs split\.$"):
        resolve("decoder", precision="int4", options=options)
    with pytest.raises(OptionError, match=r"Add --precision int4\.$"):
        resolve("decoder", options=ExportOptions(graphs="split", prefill_precision="int8"))


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_short_rows_of_4_bits_have_groups_of_their_own_in_every_kind(kind: str) -> None:
    def narrow(precision: Any) -> int | None:
        quantization = resolve(kind, precision=precision).quantization
        assert quantization is not None
        return quantization.narrow

    assert narrow("int4") == 32
    assert narrow(Int4(group_size=128)) is None
    assert narrow("int8") is None


def test_a_translator_can_be_split_and_an_encoder_cannot() -> None:
    split = ExportOptions(graphs="split")
    settings = resolve("encoder-decoder", options=split)
    sequences = {role: graph.sequence for role, graph in settings.graph_files.items()}
    assert sequences == {"encoder": None, "prefill": None, "decode": 1}
    with pytest.raises(OptionError, match="graphs: expected unified for an encoder, got split"):
        resolve("encoder", options=split)


def test_int8_products_of_a_translator_are_those_of_its_encoder() -> None:
    options = ExportOptions(graphs="split", prefill_precision="int8")
    settings = resolve("encoder-decoder", precision="int8", options=options)
    assert settings.graph_files["prefill"].min_new_tokens == 2
    assert settings.graph_files["decode"].sequence == 1


@pytest.mark.parametrize(
    ("kind", "device", "options", "got"),
    [
        ("encoder", "cpu", ExportOptions(cache="int8"), "an encoder"),
        ("encoder-decoder", "cpu", ExportOptions(cache="int8"), "an encoder-decoder"),
        ("decoder", "cuda", ExportOptions(cache="int8"), "cuda"),
        ("decoder", "cpu", ExportOptions(cache="int8", attention="portable"), "portable"),
    ],
)
def test_cache_in_8_bits_is_refused_where_there_is_no_kernel(
    kind: str, device: Device, options: ExportOptions, got: str
) -> None:
    with pytest.raises(OptionError, match=rf"^cache: expected .* in 8 bits, got {got}\. Leave"):
        resolve(kind, precision="int8", device=device, options=options)


def test_bits_are_chosen_from_the_fewest_up() -> None:
    found = resolve("encoder", precision=Auto(max_kl=0.05, exclude=("a",)))
    assert found.quantization is not None
    scheme, head = found.quantization.scheme, found.quantization.head
    assert (scheme.bits, scheme.group, head.bits, head.group) == (4, 256, 4, 128)
    assert found.quantization.exclude == ("a",)
    assert found.quantization.method == "gptq"
    assert found.options.max_kl == 0.05
    assert found.auto == Auto(max_kl=0.05, exclude=("a",))


@pytest.mark.parametrize(
    ("auto", "given", "message"),
    [
        ({}, {}, r"^auto: expected either max_kl or target_size .* neither"),
        ({"max_kl": 0.1, "target_size": 9}, {}, r"^auto: .* got both"),
        ({"max_kl": 0.0}, {}, r"^auto: expected a bound above 0 .* 0\.0"),
        ({"target_size": -1}, {}, r"^auto: expected a bound above 0 .* -1"),
        ({"max_kl": 1.0}, {"device": "cuda"}, r"^auto: expected the device cpu .* got cuda"),
        (
            {"max_kl": 1.0},
            {"options": ExportOptions(max_kl=0.5)},
            r"^auto: expected max_kl once .* 0\.5",
        ),
        (
            {"target_size": 9},
            {"options": ExportOptions(prefill_precision="int8", graphs="split")},
            r"^auto: expected no prefill precision",
        ),
    ],
)
def test_what_does_not_go_with_chosen_bits_is_refused(
    auto: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        resolve("decoder", precision=Auto(**auto), **given)
