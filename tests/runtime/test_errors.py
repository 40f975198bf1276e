from ortolan.errors import OrtolanError
from ortolan.runtime import errors

CLASSES = [
    item
    for item in vars(errors).values()
    if isinstance(item, type) and issubclass(item, OrtolanError)
]


def test_every_error_has_its_own_code_and_stands_in_the_tree() -> None:
    assert len({vars(item)["code"] for item in CLASSES}) == len(CLASSES) == 28
    assert all(item.__name__ in str(errors.__doc__) for item in CLASSES)
    assert issubclass(errors.MissingExtraError, ImportError)
