"""The JavaScript package against Python, in Node and in headless Chromium."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.hosts.chromium import chromium, run_node
from tests.hosts.js_runs import camel, run_tests
from tests.runtime.bundle.manifests import DECODER
from tests.runtime.damaged_bundles import damage, reseal

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime import Sampling, open_bundle
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.inputs.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[2] / "models"

SMALL = {"speech": "spoken", "images": "digits", "translate": "numerals"}

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


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("js")
    made: dict[str, Path] = {}
    for name, precision in PRECISIONS.items():
        made[name] = folder / name
        options = ExportOptions(proof="quick", allow_poor=True)
        ortolan.export(
            MODELS / "pythonic", made[name], device="web", precision=precision, options=options
        )
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
def cases(bundles: dict[str, Path]) -> dict[str, Any]:
    """What Python computes."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    prompt = environment.from_string(TEMPLATE).render(messages=MESSAGES, add_generation_prompt=True)
    tokenizer = Tokenizer.from_bytes((bundles["chat"] / "tokenizer.json").read_bytes())
    return {
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


def embedder(folder: Path) -> Path:
    """The masked language model of models/snippets as a checkpoint of sentence-transformers."""
    shutil.copytree(MODELS / "snippets" / "pretrained", folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 192, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture
def page(bundles: dict[str, Path], tmp_path: Path) -> Path:
    """The page with a bundle in each tab, another one, and a broken one."""
    sources = {
        "search": embedder(tmp_path / "embedder"),
        **{tab: MODELS / name for tab, name in SMALL.items()},
    }
    options = ExportOptions(proof="quick", witness=False)
    for tab, source in sources.items():
        ortolan.export(source, tmp_path / tab, device="web", options=options)
    folder = tmp_path / "page"
    tabs = {"chat": bundles["fp32"], **{tab: tmp_path / tab for tab in sources}}
    run_node("demo/build.mjs", folder, *(f"{tab}={path}" for tab, path in tabs.items()))
    shutil.copytree(bundles["int4"], folder / "int4")
    shutil.copytree(bundles["fp32"], folder / "broken")
    with (folder / "broken" / "tokenizer.json").open("a") as file:
        file.write(" ")
    return folder


def test_the_page_in_chromium(cases: dict[str, Any], page: Path, tmp_path: Path) -> None:
    program, talk = chromium(), MODELS / "spoken" / "talk.flac"
    soundfile.write(tmp_path / "talk.wav", *soundfile.read(talk))
    results = json.loads(
        run_node(
            *("test/browser.mjs", program, sys.executable),
            *(page, tmp_path, talk, tmp_path / "talk.wav"),
        )
    )
    text = PROMPT + cases["bundles"][0]["text"]
    assert results["chat"]["text"] == text
    assert "tokens per second" in results["chat"]["speed"]
    assert text.startswith(results["again"])
    assert "Certificate: PASS" in results["certificate"]
    assert len(results["int4"]) > len(PROMPT)
    assert results["isolated"]
    assert {tab for tab, own in results["tabs"].items() if own["error"]} == set()
    output = {tab: own["output"] for tab, own in results["tabs"].items()}
    assert text.startswith(output["chat"][:60])
    assert output["search"].count(".") == 5
    assert "nine green cows jump on the hill" in output["speech"]
    assert output["images"].startswith("7")
    assert output["translate"].startswith("J'habite à Paris et j'ai trente ans. Le train part")
    assert "cows jump" in results["recorded"]
    assert max(results["overflow"].values()) <= 0
    assert "server answered 404" in results["nowhere"]
    assert "tokenizer.json: expected" in results["broken"]
    if results["gpuError"]:
        assert "offers no WebGPU" in results["gpuError"]
    else:
        assert results["webgpu"].startswith("7")
    assert len(list(tmp_path.glob("*.png"))) == 12


def test_in_node(cases: dict[str, Any], tmp_path: Path) -> None:
    run_tests("node", cases, tmp_path)
