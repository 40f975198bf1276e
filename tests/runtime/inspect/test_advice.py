"""Each rule where it applies, where it just does not, and its bound computed by hand."""

import pytest

from ortolan.runtime.inspect.advice import Advice, Facts, advise
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
    """A million values; four bytes of scale for each group."""
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
HEAD = matrix("int8", group=128, is_head=True)
FLOAT_HEAD = matrix("fp32", is_head=True)

INT4_BYTES = 500_000 + 31_250
HEAD_BYTES = 1_000_000 + 31_250


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


def only(given: Facts) -> Advice:
    (advice,) = advise(given)
    return advice


def test_nothing_to_say_of_the_best() -> None:
    assert advise(facts(INT4, HEAD, share=0.5)) == ()


# --- bytes ------------------------------------------------------------------------------------


def test_float_weights_become_int4_and_the_head_int8() -> None:
    advice = only(facts(matrix("fp32"), FLOAT_HEAD, other=37_500))
    after = INT4_BYTES + HEAD_BYTES + 37_500
    assert advice.rule == "float weights"
    assert advice.at_most == pytest.approx(8_037_500 / after)
    assert advice.text == (
        "weights in fp32: 8.0 MB of 8.0 MB per token. Export with --precision int4: "
        "1.6 MB per token, at most 5.02 times as fast."
    )


def test_the_cache_bounds_what_smaller_weights_bring() -> None:
    advice = only(facts(matrix("fp32"), FLOAT_HEAD, cache=1000, length=500))
    assert advice.at_most == pytest.approx(8_500_000 / (INT4_BYTES + HEAD_BYTES + 500_000))


def test_widened_weights_say_how_they_are_stored() -> None:
    advice = only(facts(matrix("fp32", stored="fp16"), matrix("fp32", stored="fp16", is_head=True)))
    assert advice.text.startswith("weights in fp32 (stored as fp16): 8.0 MB of 8.0 MB")


def test_a_float_head_over_quantized_blocks_is_named() -> None:
    advice = only(facts(INT4, INT4, FLOAT_HEAD))
    assert advice.rule == "float weights left"
    assert advice.text.startswith("head in fp32: 4.0 MB of 5.1 MB per token.")
    assert "excluding" in advice.text
    assert advice.at_most == pytest.approx((2 * INT4_BYTES + 4e6) / (2 * INT4_BYTES + HEAD_BYTES))


def test_other_floats_among_quantized_blocks_are_counted() -> None:
    advice = only(facts(INT4, matrix("fp32"), matrix("fp32"), HEAD))
    assert advice.text.startswith("2 matrices in fp32: 8.0 MB of ")


def test_int8_blocks_become_int4_and_their_head_stays() -> None:
    advice = only(facts(matrix("int8", group=128), HEAD))
    assert advice.rule == "int8 weights"
    assert advice.at_most == pytest.approx(2 * HEAD_BYTES / (INT4_BYTES + HEAD_BYTES))


@pytest.mark.parametrize("group", [32, 64])
def test_small_groups_read_more_scales(group: int) -> None:
    advice = only(facts(matrix("int4", group=group)))
    now = 500_000 + 4 * ELEMENTS / group
    assert advice.rule == "small groups"
    assert advice.text.startswith(f"groups of {group}: ")
    assert "--group-size 128" in advice.text
    assert advice.at_most == pytest.approx(now / INT4_BYTES, rel=1e-4)


def test_small_groups_that_make_rows_shorter_are_left_alone() -> None:
    assert advise(facts(matrix("int4", group=64, inputs=576))) == ()
    assert advise(facts(matrix("int4", group=32, inputs=576))) != ()
    both = only(facts(matrix("int4", group=64, inputs=576), matrix("int4", group=32)))
    assert both.text.startswith("groups of 32: ")


def test_int8_in_small_groups_is_two_things_to_do() -> None:
    given = advise(facts(matrix("int8", group=32), matrix("int8", group=32), HEAD))
    assert [advice.rule for advice in given] == ["int8 weights", "small groups"]


def test_groups_of_the_head_are_not_for_the_user_to_choose() -> None:
    assert advise(facts(INT4, matrix("int8", group=32, is_head=True))) == ()


def test_a_bound_that_nobody_would_notice_is_not_said() -> None:
    assert advise(facts(matrix("fp32"), FLOAT_HEAD, other=200_000_000)) == ()


@pytest.mark.parametrize("group", [32, None])
def test_bytes_do_not_matter_within_the_cache(group: int | None) -> None:
    assert advise(facts(matrix("int8", group=group), FLOAT_HEAD, in_cache=True)) == ()


def test_bytes_do_not_matter_where_nothing_was_generated() -> None:
    assert advise(facts(matrix("fp32"), FLOAT_HEAD, length=None)) == ()


# --- cores and memory -------------------------------------------------------------------------


def test_idle_cores_bound_the_speed_by_their_number() -> None:
    advice = only(facts(INT4, HEAD, threads=1, in_cache=True))
    assert (advice.rule, advice.at_most) == ("idle cores", 4)
    assert advice.text == (
        "1 of 4 physical cores in use. Choose --threads 4: at most 4.00 times as fast."
    )


def test_more_threads_than_cores_promise_nothing() -> None:
    advice = only(facts(INT4, HEAD, threads=5))
    assert (advice.rule, advice.at_most) == ("too many threads", None)
    assert "--threads 4" in advice.text


def test_a_share_near_the_bandwidth_leaves_only_fewer_bytes() -> None:
    assert advise(facts(INT4, HEAD, share=0.79)) == ()
    advice = only(facts(INT4, HEAD, share=0.8))
    assert (advice.rule, advice.at_most) == ("bandwidth", None)
    assert "80% of the bandwidth" in advice.text
    assert "more than 1.25 times" in advice.text


def test_weights_that_are_not_packed_take_memory_of_the_process() -> None:
    advice = only(facts(INT4, HEAD, other=7_000_000, is_packed=False))
    assert (advice.rule, advice.at_most) == ("not packed", None)
    assert f"up to {(INT4_BYTES + HEAD_BYTES) / 1e6:.1f} MB" in advice.text
    assert "not for speed" in advice.text


@pytest.mark.parametrize(("is_packed", "in_cache"), [(True, False), (None, False), (False, True)])
def test_packing_is_for_weights_that_can_be_and_are_worth_it(
    is_packed: bool | None, in_cache: bool
) -> None:
    assert advise(facts(INT4, HEAD, is_packed=is_packed, in_cache=in_cache)) == ()
