"""A standard library with a few small files per package."""

from pathlib import Path

from snippets.snippets import PACKAGES

FILES = 4
"""Files per package; one of them is held out."""


def write_stdlib(root: Path) -> Path:
    """Writes files with lines and imports that identify their package."""
    for package in PACKAGES:
        for number in range(FILES):
            lines = [f"import {package}", f"from {package}.part import thing", "from . import near"]
            for line in range(30):
                lines += [f"def {package[::-1]}(x{line}):", f"    return {number + line}", ""]
            path = root / package / f"file{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines))
    others = {
        "top.py": "value = 1\n\n\nother = 2\n" * 40,
        "vendored/far.py": "import asyncio\n" * 40,
        "test/test_json/test_one.py": "assert loads('1') == 1\n" * 24,
        "test/test_urllib2.py": "assert quote('1') == '1'\n" * 24,
        "test/test_other.py": "assert True\n" * 24,
    }
    for name, text in others.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "json" / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    return root
