"""Licences of the packages that users install with Ortolan."""

import re
from importlib.metadata import PackageNotFoundError, metadata, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = (
    *("cpu", "chat", "serve", "grammar", "vision", "plot", "export", "gguf", "sign", "webgpu"),
    "audio",
)
"""Extras of the runtime and the export. Those of development and training are tools."""

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|CC0|Unlicense|Zlib)"
    r"|3-Clause",
    re.IGNORECASE,
)

EXCEPTIONS = {
    "soxr": "LGPL: a library of its own, used unchanged for sound files only",
    "sigstore-models": "MIT, in a file; its metadata name none",
}
"""Packages that name another licence or none, and why that is no burden."""


def installed(extras: tuple[str, ...]) -> set[str]:
    """Names of installed packages that `ortolan` with these extras requires, in any depth."""
    found: set[str] = set()
    ahead = [("ortolan", extras)]
    while ahead:
        name, wanted = ahead.pop()
        for line in requires(name) or ():
            need = Requirement(line)
            if need.marker and not any(
                need.marker.evaluate({"extra": extra}) for extra in (*wanted, "")
            ):
                continue
            package = str(canonicalize_name(need.name))
            is_own = package == "ortolan"
            if (package in found and not is_own) or not is_installed(package):
                continue
            if is_own and set(need.extras) <= set(wanted):
                continue
            found.add(package)
            inner = (*wanted, *need.extras) if is_own else tuple(need.extras)
            ahead.append((package, inner))
    return found - {"ortolan"}


def is_installed(package: str) -> bool:
    try:
        metadata(package)
    except PackageNotFoundError:
        return False
    return True


def licence(package: str) -> str:
    """The licence of a package, from every metadata field that may name it."""
    about = metadata(package)
    fields = ("License-Expression", "License", "Classifier")
    lines = [line for field in fields for line in about.get_all(field) or ()]
    named = [line.partition("\n")[0] for line in lines if " :: " not in line or "License" in line]
    return "; ".join(named)


def test_packages_are_under_permissive_licences() -> None:
    packages = installed(EXTRAS)
    assert {"numpy", "onnxruntime", "tokenizers", "torch", "msgspec", "starlette"} <= packages
    assert "pytest" not in packages
    licences = {package: licence(package) for package in packages - EXCEPTIONS.keys()}
    assert {own: text for own, text in licences.items() if not PERMISSIVE.search(text)} == {}
