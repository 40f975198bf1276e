import pytest
from tests.cases import Case, Variant, contrast
from tests.cases.laws import Law, applicable
from tests.cases.run import Run
from tests.cases.texts import COMMON


@pytest.mark.parametrize(
    ("case", "variant", "law"), applicable((*COMMON.values(), *contrast.CASES))
)
def test_law(case: Case, variant: Variant, law: Law, run: Run) -> None:
    law(run)
