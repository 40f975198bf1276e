import pytest
from tests.cases import Case, Variant, sounds, tiles
from tests.cases.laws import Law, applicable
from tests.cases.run import Run


@pytest.mark.parametrize(("case", "variant", "law"), applicable((*tiles.CASES, *sounds.CASES)))
def test_law(case: Case, variant: Variant, law: Law, run: Run) -> None:
    law(run)
