"""Positions that images of rows save."""

from ortolan.runtime.engine.shifts import Shift, Shifts


def test_a_shift_counts_from_the_end_of_its_image() -> None:
    shifts = Shifts(1)
    shifts.add([Shift(8, 3), Shift(20, 5)], 0, row=0)
    assert shifts.before(30, row=0) == 8
    assert shifts.within(8, 20, row=0) == (Shift(12, 5),)
    assert shifts.within(7, 8, row=0) == (Shift(1, 3),)


def test_a_row_that_was_shortened_forgets_later_images() -> None:
    shifts = Shifts(1)
    shifts.add([Shift(8, 3), Shift(20, 5)], 0, row=0)
    assert shifts.before(19, row=0) == 3
    assert shifts.before(30, row=0) == 3
    shifts.add([Shift(2, 1)], 10, row=0)
    assert shifts.before(12, row=0) == 4
    shifts.add([], 0, row=0)
    assert shifts.before(30, row=0) == 0


def test_rows_are_copied_at_once() -> None:
    shifts = Shifts(3)
    shifts.add([Shift(8, 3)], 0, row=0)
    shifts.add([Shift(4, 1)], 0, row=1)
    shifts.copy([0, 1], [1, 2])
    assert [shifts.before(9, row=row) for row in range(3)] == [3, 3, 1]
    assert shifts.before(2, row=1) == 0
    assert shifts.before(9, row=0) == 3
