"""The layout of the repository: links, wheel, import directions, sizes, pins."""

import ast
import functools
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from tests import skips

import check_sizes
import check_wheel
import ortolan
from ortolan import distribution, freezing

ROOT = Path(__file__).parents[1]
ROOMS = ("modeling", "export", "runtime")


def python(code: str, *, src: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(src)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy: building in it leaves nothing in the repository and sees nothing stale."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*ROOMS, "src"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (checkout / "dist").glob("*.whl")
    return built


@pytest.fixture
def without_links(tmp_path: Path) -> Path:
    """What git checks out without symbolic links: files that contain the target's path."""
    src = tmp_path / "src"
    shutil.copytree(ROOT / "src", src, symlinks=True)
    for room in ROOMS:
        link = src / "ortolan" / room
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    return src


def test_wheel_holds_every_module_and_imports(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    assert list(check_wheel.problems(wheel, checkout)) == []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    assert {f"ortolan/{room}/errors.py" for room in ROOMS} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"ortolan", f"ortolan-{ortolan.__version__}.dist-info"}
    done = python("import ortolan.runtime.errors as e; print(e.__file__)", src=tmp_path)
    assert done.stdout.strip() == str(tmp_path / "ortolan" / "runtime" / "errors.py"), done.stderr


def test_checkout_without_links_says_how_to_get_them(without_links: Path) -> None:
    done = python("import ortolan", src=without_links)
    assert done.returncode == 1
    assert "ImportError: ortolan: the folders modeling, export, runtime" in done.stderr
    assert "git config core.symlinks true" in done.stderr


# Modules that importing a whole package must not load.
KEPT_OUT = {
    "ortolan.runtime": (
        *("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors"),
        *("ortolan.modeling", "ortolan.export", "ortolan.cli"),
        *("PIL", "matplotlib"),
    ),
    "ortolan.modeling": ("onnxruntime", "ortolan.export", "ortolan.runtime", "ortolan.cli"),
}

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*sorted(set(sys.modules) & set({kept_out!r})))
"""


@pytest.mark.parametrize(
    "package", ["ortolan.runtime", pytest.param("ortolan.modeling", marks=pytest.mark.slow)]
)
def test_importing_all_of_a_room_keeps_the_others_out(package: str) -> None:
    done = python(IMPORT_ALL.format(package=package, kept_out=KEPT_OUT[package]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize(("package", "most"), [("modeling", 20), ("runtime", 12)])
def test_no_chain_of_imports_is_longer_than_this(package: str, most: int) -> None:
    graph = grimp.build_graph("ortolan", exclude_type_checking_imports=True, cache_dir=None)
    modules = {name for name in graph.modules if name.startswith(f"ortolan.{package}.")}

    @functools.cache
    def floors(name: str) -> int:
        below = graph.find_modules_directly_imported_by(name) & modules
        return 1 + max(map(floors, below), default=0)

    assert max(map(floors, modules)) <= most


def test_importing_ortolan_loads_no_room_and_no_framework() -> None:
    done = python("import ortolan, sys; print(*{name.split('.')[0] for name in sys.modules})")
    loaded = set(done.stdout.split())
    assert "ortolan" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "onnx", "onnxruntime", "transformers"})


# --- sizes and skips --------------------------------------------------------------------------


def test_a_room_over_its_budget_or_without_one_fails() -> None:
    budgets = {"full": 5, "over": 5, "gone": 5}
    new, gone, over = sorted(check_sizes.over_budget({"full": 5, "over": 6, "a new": 1}, budgets))
    assert new.startswith("a new: a room without a budget")
    assert gone.startswith("gone: no such room")
    assert over.startswith("over has 6 lines of code (at most 5)")


def test_only_what_a_machine_lacks_may_skip_a_test() -> None:
    assert skips.need_of("no NVIDIA driver. Install it and restart") == "an NVIDIA GPU"
    assert skips.need_of("needs mono, /usr/share/java/jna.jar") == "a toolchain"
    assert skips.need_of("could not import 'torch'") is None
    assert skips.need_of("not finished") is None


# --- versions ---------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"]]
    for extra in extras.keys() - {"cuda"}:  # not installed where these pins were tested
        needed += [line for line in extras[extra] if not line.startswith(f"{project['name']}[")]
    return sorted(set(needed))


def test_dependencies_are_pinned_to_versions_that_they_allow() -> None:
    needed = [Requirement(dependency) for dependency in dependencies()]
    wrong = [str(one) for one in needed if not one.specifier.contains(pins()[one.name])]
    assert needed
    assert wrong == []


@pytest.mark.parametrize("name", ["Makefile", "README.md"])
def test_every_pip_install_takes_the_constraints(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs
    assert all("pip install -c constraints.txt" in line for line in installs)


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ortolan.__version__
    assert f"## [{ortolan.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_a_frozen_program_has_no_links_to_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distribution.missing_rooms(tmp_path) == ["runtime"]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert distribution.missing_rooms(tmp_path) == []
    assert not distribution.is_runtime_only(tmp_path)  # modules are importable


def test_pyinstaller_finds_the_hooks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["pyinstaller40"]
    assert points == {"hook-dirs": "ortolan.freezing:hook_folders"}
    (folder,) = map(Path, freezing.hook_folders())
    assert (folder / "hook-ortolan.py").is_file()
    (name,) = ast.literal_eval((folder / "rthooks.dat").read_text())["ortolan"]
    assert (folder / "rthooks" / name).is_file()
