import pytest
from tests.cases import Case, Variant, grids, images
from tests.cases.laws import Law, applicable
from tests.cases.run import Run


@pytest.mark.parametrize(("case", "variant", "law"), applicable((*images.CASES, *grids.CASES)))
def test_law(case: Case, variant: Variant, law: Law, run: Run) -> None:
    law(run)
