from ortolan.errors import OrtolanError
from ortolan.runtime import errors


def classes() -> list[type[OrtolanError]]:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    return [item for item in found if issubclass(item, OrtolanError)]


def test_codes_differ_and_belong_to_their_class() -> None:
    codes = {item.__name__: vars(item)["code"] for item in classes()}

    assert len(set(codes.values())) == len(codes) == 27


def test_tree_in_the_docstring_names_every_error() -> None:
    assert errors.__doc__ is not None
    for item in classes():
        assert item.__name__ in errors.__doc__


def test_missing_extra_is_caught_as_an_import_error() -> None:
    assert issubclass(errors.MissingExtraError, ImportError)
