import pytest

from ortolan.export.options import Form, Kind, Rounding, resolve

INT4 = Form(
    device="cpu",
    precision="int4",
    graphs="unified",
    attention="fused",
    prefill_precision=None,
    attention_maps=False,
    allow_cpu_nodes=False,
)
DEFAULT = Rounding(None, None, asymmetric=False, head_bits=None, exclude=())


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
    options = resolve(kind, INT4, DEFAULT, max_kl=None, can_calibrate=can_calibrate)
    assert options.quantization is not None
    assert (options.quantization.method, options.quantization.head.bits) == (method, head_bits)


def test_head_of_an_encoder_has_the_bits_that_were_asked_for() -> None:
    rounding = DEFAULT._replace(head_bits=4)
    options = resolve("encoder", INT4, rounding, max_kl=None, can_calibrate=True)
    assert options.quantization is not None
    assert options.quantization.head.bits == 4
