"""Adds an SBOM to wheels, as PEP 770 specifies. Everything else is in pyproject.toml.

The SBOM is a CycloneDX document. The wheel contains no code of others, so its components are the
packages that it requires, with their ranges of versions. There is neither a time nor a random
number in it, so builds stay reproducible.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel


def sbom(
    name: str, version: str, requires: Iterable[str], extras: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Return the CycloneDX document of a distribution.

    Args:
        name: of the distribution.
        version: of the distribution.
        requires: its requirements.
        extras: requirements by extra.
    """
    groups = [("", line) for line in requires]
    groups += [(extra, line) for extra in sorted(extras) for line in extras[extra]]
    components: dict[str, dict[str, Any]] = {}
    for extra, line in groups:
        package, range_ = re.fullmatch(r"([\w.-]+)(.*)", line).groups()  # type: ignore[union-attr]
        package = re.sub(r"[-_.]+", "-", package).lower()
        if package == name:  # an extra that includes another
            continue
        component = components.setdefault(package, _component(package))
        component.setdefault("scope", "optional" if extra else "required")
        label = f"ortolan:extra:{extra}" if extra else "ortolan:requirement"
        component.setdefault("properties", []).append({"name": label, "value": range_})
    required = [each["bom-ref"] for each in components.values() if each["scope"] == "required"]
    root = _component(name, version) | {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": root},
        "components": [components[package] for package in sorted(components)],
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": sorted(required)}],
    }


def _component(name: str, version: str = "") -> dict[str, Any]:
    purl = f"pkg:pypi/{name}" + (f"@{version}" if version else "")
    named = {"type": "library", "bom-ref": purl, "name": name, "purl": purl}
    return named | ({"version": version} if version else {})


class WheelWithSbom(bdist_wheel):
    """Writes the SBOM to `.dist-info/sboms/`, before the wheel is packed."""

    def write_wheelfile(self, wheelfile_base: str, *args: Any, **options: Any) -> None:
        """Write the file WHEEL, and the SBOM next to it."""
        super().write_wheelfile(wheelfile_base, *args, **options)
        project = self.distribution
        name, version = project.get_name(), project.get_version()
        document = sbom(name, version, project.install_requires, project.extras_require)
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.cdx.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    setuptools.setup(cmdclass={"bdist_wheel": WheelWithSbom})
