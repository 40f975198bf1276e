"""The files in examples/serving. No container engine and no cluster runs here: they are parsed."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ortolan.cli import serve

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"


def options(words: list[str]) -> dict[str, Any]:
    """The options of `ortolan serve` that these words set."""
    context = serve.serve_command.make_context("serve", [*words])
    assert isinstance(context, click.Context)
    return context.params


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("secret")
    return file


def docker_lines() -> list[tuple[str, str]]:
    """Instruction and rest of each line of the Dockerfile."""
    text = (EXAMPLES / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_unit_starts_a_server_with_a_key(keys: Path) -> None:
    unit = (EXAMPLES / "ortolan.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    start = start.replace("${CREDENTIALS_DIRECTORY}/keys", str(keys))
    program, command, *words = shlex.split(start)
    assert (program, command) == ("/opt/ortolan/bin/ortolan", "serve")
    parsed = options(words)
    assert parsed["key_file"] == keys
    assert not parsed["insecure"]
    (wait,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert parsed["shutdown_timeout_s"] < int(wait)  # systemd kills it after that
    assert "DynamicUser=yes" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "ortolan.service"
    text = (EXAMPLES / "ortolan.service").read_text()
    unit.write_text(text.replace("/opt/ortolan/bin/ortolan", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_image_starts_a_guarded_server_that_is_not_root_and_watched() -> None:
    lines = docker_lines()
    names = [name for name, _ in lines]
    assert all("slim" in rest for name, rest in lines if name == "FROM")
    last = dict(lines[len(names) - 1 - names[::-1].index("FROM") :])
    assert last["USER"] not in ("root", "0")
    assert "RUN" not in names[names.index("USER") :]
    program = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    compile(program[2], "HEALTHCHECK", "exec")
    assert "/ready" in program[2]
    entry = json.loads(last["ENTRYPOINT"])
    assert entry[:2] == ["ortolan", "serve"]
    parsed = options([*entry[2:], *json.loads(last["CMD"])])
    assert parsed["host"] == "0.0.0.0"
    assert not parsed["insecure"]  # without a key, the command ends with an error
    assert last["EXPOSE"] == str(parsed["port"])


def test_the_image_copies_what_the_package_consists_of() -> None:
    root = EXAMPLES.parents[1]
    kept = (EXAMPLES / "Dockerfile.dockerignore").read_text().splitlines()
    assert kept[0] == "*"
    names = {line.removeprefix("!") for line in kept[1:]}
    assert all((root / name).exists() for name in names)
    links = {link.resolve().name for link in (root / "src/ortolan").iterdir() if link.is_symlink()}
    assert links | {"src", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"} == names


def test_the_service_of_kserve_runs_the_image() -> None:
    (service,) = yaml.safe_load_all((EXAMPLES / "kserve.yaml").read_text())
    assert service["kind"] == "InferenceService"
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    entry = json.loads(dict(docker_lines())["ENTRYPOINT"])
    parsed = options([*entry[2:], *container["args"]])
    assert container["ports"][0]["containerPort"] == parsed["port"]
    assert container["env"][0]["name"] == serve.KEYS_VARIABLE
    (bundle,) = parsed["models"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert bundle.partition("=")[2].startswith(mounts["models"])
    assert set(mounts) == {volume["name"] for volume in predictor["volumes"]}
    probes = [container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")]
    assert probes == ["/ready", "/health"]
    assert container["securityContext"]["runAsNonRoot"]
