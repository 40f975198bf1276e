"""Each rule where it applies and where it just does not, with bounds computed by hand."""

from dataclasses import replace

import pytest

from ortolan.runtime.inspect.advice import Facts, advise
from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads

ELEMENTS = 1_000_000


def matrix(
    format_: str = "int4",
    *,
    stored: str | None = None,
    group: int | None = None,
    inputs: int = ELEMENTS,
    is_head: bool = False,
) -> MatrixRead:
    """A million values, with four bytes of scale per group."""
    width = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}[format_]
    grid = 0 if group is None else 4 * ELEMENTS // group
    return MatrixRead(
        name="weight",
        format=format_,
        stored=stored or format_,
        group=group,
        inputs=inputs,
        elements=ELEMENTS,
        bytes=int(ELEMENTS * width) + grid,
        grid_bytes=grid,
        is_head=is_head,
    )


INT4 = matrix("int4", group=128)
FLOAT = matrix("fp32")
HEAD = matrix("int8", group=128, is_head=True)
FLOAT_HEAD = matrix("fp32", is_head=True)

INT4_BYTES = 500_000 + 31_250
HEAD_BYTES = 1_000_000 + 31_250
QUANTIZED = INT4_BYTES + HEAD_BYTES


def facts(
    *matrices: MatrixRead,
    other: int = 0,
    cache: int = 0,
    length: float | None = 0,
    threads: int = 4,
    share: float | None = None,
    in_cache: bool = False,
    is_packed: bool | None = True,
) -> Facts:
    return Facts(
        reads=StepReads(
            matrices=matrices, other_bytes=other, cache_bytes_per_token=cache, state_bytes=0
        ),
        length=length,
        threads=threads,
        physical_cores=4,
        share=share,
        in_cache=in_cache,
        is_packed=is_packed,
    )


@pytest.mark.parametrize(
    ("situation", "rule", "at_most", "words"),
    [
        (
            facts(FLOAT, FLOAT_HEAD, other=37_500),
            "float weights",
            8_037_500 / (QUANTIZED + 37_500),
            "weights in fp32: 8.0 MB of 8.0 MB per token. Export with --precision int4: "
            "1.6 MB per token, at most 5.02 times as fast.",
        ),
        (
            facts(FLOAT, FLOAT_HEAD, cache=1000, length=500),  # the cache stays as it is
            "float weights",
            8_500_000 / (QUANTIZED + 500_000),
            "",
        ),
        (
            facts(matrix("fp32", stored="fp16"), matrix("fp32", stored="fp16", is_head=True)),
            "float weights",
            8_000_000 / QUANTIZED,
            "weights in fp32 (stored as fp16): 8.0 MB of 8.0 MB",
        ),
        (
            facts(INT4, INT4, FLOAT_HEAD),
            "float weights left",
            (2 * INT4_BYTES + 4e6) / (2 * INT4_BYTES + HEAD_BYTES),
            "head in fp32: 4.0 MB of 5.1 MB per token. Export without excluding",
        ),
        (
            facts(matrix("int8", group=128), HEAD),
            "int8 weights",
            2 * HEAD_BYTES / QUANTIZED,
            "weights in int8",
        ),
        (
            facts(matrix("int4", group=32)),
            "small groups",
            (500_000 + 4 * ELEMENTS / 32) / INT4_BYTES,
            "groups of 32: 0.6 MB of 0.6 MB per token. Export with --group-size 128",
        ),
        (
            # rows of 576 are shorter in groups of 64 than of 128
            facts(matrix("int4", group=64, inputs=576), matrix("int4", group=32)),
            "small groups",
            (2 * 500_000 + 4 * ELEMENTS / 64 + 4 * ELEMENTS / 32)
            / (500_000 + 4 * ELEMENTS / 64 + INT4_BYTES),
            "groups of 32: ",
        ),
        (
            facts(INT4, HEAD, threads=1, in_cache=True),
            "idle cores",
            4,
            "1 of 4 physical cores in use. Choose --threads 4: at most 4.00 times as fast.",
        ),
        (facts(INT4, HEAD, threads=5), "too many threads", None, "5 threads on 4 physical"),
        (facts(INT4, HEAD, share=0.8), "bandwidth", None, "generating reads at 80% of the band"),
        (
            facts(INT4, HEAD, other=7_000_000, is_packed=False),
            "not packed",
            None,
            f"weights not packed: this process keeps a copy of up to {QUANTIZED / 1e6:.1f} MB",
        ),
    ],
)
def test_advice_names_the_finding_and_bounds_the_speedup(
    situation: Facts, rule: str, at_most: float | None, words: str
) -> None:
    (advice,) = advise(situation)
    assert advice.rule == rule
    assert advice.at_most == (None if at_most is None else pytest.approx(at_most, rel=1e-4))
    assert advice.text.startswith(words)


@pytest.mark.parametrize(
    "situation",
    [
        facts(INT4, HEAD, share=0.5),
        facts(INT4, HEAD, share=0.79),
        facts(INT4, HEAD, replace(FLOAT, name="weight.minimums")),
        facts(matrix("int4", group=64, inputs=576)),
        facts(INT4, matrix("int8", group=32, is_head=True)),  # an export chooses these groups
        facts(FLOAT, FLOAT_HEAD, other=200_000_000),  # too small a gain
        facts(matrix("int8", group=32), FLOAT_HEAD, in_cache=True),  # bytes do not matter
        facts(matrix("int8"), FLOAT_HEAD, in_cache=True),
        facts(FLOAT, FLOAT_HEAD, length=None),
        facts(INT4, HEAD, is_packed=True),
        facts(INT4, HEAD, is_packed=None),
        facts(INT4, HEAD, is_packed=False, in_cache=True),
    ],
)
def test_no_advice_without_a_gain(situation: Facts) -> None:
    assert advise(situation) == ()


def test_int8_in_small_groups_gets_two_pieces_of_advice() -> None:
    advice = advise(facts(matrix("int8", group=32), matrix("int8", group=32), HEAD))
    assert [entry.rule for entry in advice] == ["int8 weights", "small groups"]


def test_groups_of_32_are_too_small_for_rows_of_576() -> None:
    assert advise(facts(matrix("int4", group=32, inputs=576))) != ()
