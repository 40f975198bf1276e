"""The JavaScript package against Python, in Node and in headless Chromium."""

import importlib.util
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.hosts.node_package import installed_package
from tests.runtime.bundle.manifests import DECODER
from tests.runtime.damaged_bundles import damage, reseal

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime import Sampling, open_bundle
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.inputs.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

PROMPT = "def read_lines(path):"

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}"
    "{% if m.role == 'assistant' %}<|endoftext|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

MESSAGES = [
    {"role": "system", "content": "Short answers. "},
    {"role": "user", "content": "What is é + 1?"},
]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.3, "top_k": 5, "seed": 2},
    {"temperature": 1.0, "top_p": 0.6, "seed": 3},
    {"temperature": 1.0, "min_p": 0.2, "seed": 4},
    {"repetition_penalty": 1.8},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -0.4, "seed": 5},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 2**52 + 3},
    {"logit_bias": {3: 8.0, 7: -100.0}},
    {"presence_penalty": 0.1, "frequency_penalty": 0.7, "repetition_penalty": 1.1},
]

PRECISIONS: dict[str, Any] = {"fp32": "fp32", "int4": Int4(method="rtn", group_size=32)}

MANIFESTS = (
    *("schema = 5", "kind = 'encoder'", "graphs = {}"),
    *("weights = ['other.bin']", "files.0.name = '../x'"),
    *(name for name in DECODER if name.startswith("host.session")),
)
"""Edits of a manifest that matter to this reader, which ignores fields that it does not need."""

SEEDS = (0, 1, 2**63, 2**128 + 5, 2**200 + 3)

DRAWN: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "seed": 7,
}


def camel(options: dict[str, Any]) -> dict[str, Any]:
    def name(key: str) -> str:
        first, *rest = key.split("_")
        return first + "".join(part.title() for part in rest)

    return {name(key): value for key, value in options.items()}


@pytest.fixture(scope="session")
def package() -> Path:
    return installed_package()


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("js")
    source = Path(__file__).parents[2] / "models" / "pythonic"
    made: dict[str, Path] = {}
    for name, precision in PRECISIONS.items():
        made[name] = folder / name
        options = ExportOptions(proof="quick", allow_poor=True)
        ortolan.export(source, made[name], device="web", precision=precision, options=options)
    # capped scores become products that write to slots, next to attention that extends its cache
    tiny = tiny_models.decoder(tiny_models.qwen2())
    made["slots"] = folder / "slots"
    ortolan.export(tiny, made["slots"], device="web", precision="fp32", options=options)
    made["chat"] = folder / "chat"
    shutil.copytree(made["fp32"], made["chat"])
    config = {"chat_template": TEMPLATE, "bos_token": None, "eos_token": "<|endoftext|>"}
    (made["chat"] / "tokenizer_config.json").write_text(json.dumps(config))
    reseal(made["chat"])
    made["damaged"] = folder / "damaged"
    shutil.copytree(made["fp32"], made["damaged"])
    weights = [t for t in open_bundle(made["fp32"]).graphs["decoder"].external if len(t.dims) == 2]

    def change(values: NDArray[Any]) -> None:
        values *= 1.3

    damage(made["damaged"], weights[3].name, change)
    return made


def bundle_case(folder: Path, prompt: str | list[int]) -> dict[str, Any]:
    model = ortolan.load(folder, ortolan.Decoder, device="cpu")
    sampled = Sampling(**DRAWN)
    greedy = model.generate(prompt, max_new_tokens=32, ignore_eos=True)
    drawn = model.generate(prompt, max_new_tokens=32, ignore_eos=True, sampling=sampled)
    ids = (
        prompt
        if isinstance(prompt, list)
        else Tokenizer.from_bytes((folder / "tokenizer.json").read_bytes()).encode(prompt)
    )
    highest = np.sort(model.logits([*ids, *greedy.tokens])[len(ids) - 1 : -1])[:, -2:]
    return {
        "bundle": str(folder),
        "prompt": prompt,
        "options": camel(DRAWN),
        "greedy": greedy.tokens,
        "gaps": (highest[:, 1] - highest[:, 0]).tolist(),
        "text": greedy.text or "",
        "sampled": drawn.tokens,
    }


def sampling_case(settings: dict[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (12, 60)).astype(np.float32)
    prompt = [1, 5, 5, 59]
    sampler = Sampler(Sampling(**settings), 60, prompt=prompt)
    tokens = [sampler.next(row) for row in logits]
    return {
        "options": camel(settings),
        "logits": logits.tolist(),
        "prompt": prompt,
        "tokens": tokens,
    }


def edited(bundle: Path, name: str) -> Any:
    document = json.loads((bundle / "manifest.json").read_text())
    DECODER[name](document)
    return document


@pytest.fixture(scope="session")
def cases(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSON file with what Python computes."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    prompt = environment.from_string(TEMPLATE).render(messages=MESSAGES, add_generation_prompt=True)
    tokenizer = Tokenizer.from_bytes((bundles["chat"] / "tokenizer.json").read_bytes())
    document = {
        "random": {s: [str(n) for n in np.random.PCG64(s).random_raw(3)] for s in SEEDS},
        "sampling": [sampling_case(settings) for settings in SETTINGS],
        "bundles": [
            *(bundle_case(bundles[name], PROMPT) for name in PRECISIONS),
            bundle_case(bundles["slots"], [3, 1, 4, 1, 5] * 12),
        ],
        "chat": {
            "bundle": str(bundles["chat"]),
            "messages": MESSAGES,
            "ids": tokenizer.encode(prompt, add_special_tokens=False),
            "end": ChatTemplate(TEMPLATE, tokenizer, {}).end_of_turn,
        },
        "damaged": str(bundles["damaged"]),
        "manifests": {name: edited(bundles["fp32"], name) for name in MANIFESTS},
    }
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    path.write_text(json.dumps(document))
    return path


def run_node(package: Path, cases: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["node", *arguments],
        cwd=package,
        env={**os.environ, "ORTOLAN_CASES": str(cases)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def page(package: Path, cases: Path, bundles: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """The address of the page, with a sound bundle and a broken one."""
    folder = tmp_path / "page"
    run_node(package, cases, "demo/build.mjs", str(folder), str(bundles["fp32"]))
    shutil.copytree(bundles["int4"], folder / "int4")
    shutil.copytree(folder / "bundle", folder / "broken")
    with (folder / "broken" / "tokenizer.json").open("a") as file:
        file.write(" ")
    server = load_module(package / "demo" / "serve.py").server(str(folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_in_chromium(package: Path, cases: Path, page: str, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium. Run `make software-gpu`, which installs Debian's")
    (got,) = run_node(
        package, cases, "test/browser.mjs", chromium, page, str(tmp_path)
    ).splitlines()
    results = json.loads(got)
    text = PROMPT + json.loads(cases.read_text())["bundles"][0]["text"]
    assert results["wasm"]["text"] == text
    assert "tokens per second" in results["wasm"]["speed"]
    assert text.startswith(results["again"])
    assert "Certificate: PASS" in results["certificate"]
    assert results["int4Error"] == ""
    assert len(results["int4"]) > len(PROMPT)
    assert results["isolated"]
    assert results["overflow"] <= 0
    assert "server answered 404" in results["missing"]
    assert "tokenizer.json: expected" in results["broken"]
    if results["gpuState"] == "Ready":
        assert text.startswith(results["webgpu"]["text"])
    else:
        assert "offers no WebGPU" in results["gpuError"]
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_in_node(package: Path, cases: Path) -> None:
    said = run_node(package, cases, "--test", "test/node.test.js")
    assert "# fail 0" in said
    assert "# skipped 0" in said
