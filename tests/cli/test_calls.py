"""Commands make the call that their options name, and each option of each command has a test."""

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion
from tests.runtime import tiny_encoder
from tests.runtime.chat.tiny_chat import chat_model

from ortolan.cli import COMMANDS, cli
from ortolan.runtime import Decoder, DraftModel, Encoder, Sampling, Seq2Seq, load, open_bundle
from ortolan.runtime.chat.conversation import Conversation

TESTS = Path(__file__).parents[1]

SAMPLING = (
    "--temperature 0.5 --top-p 0.9 --seed 3 --top-k 5 --min-p 0.1 --repetition-penalty 1.1 "
    "--presence-penalty 0.2 --frequency-penalty 0.3"
)
MACHINE = "--device cpu --threads 1 --no-isolate"

LINES = (
    "run decoder def",
    f"run decoder def -n 4 --stop a --stop b --ignore-eos {MACHINE}",
    f"run decoder def {SAMPLING}",
    "run decoder def --model-sampling --top-k 2",
    "run decoder def --json-schema notes.json",
    "run decoder def --regex a+",
    "run decoder def --lark grammar.lark",
    "run decoder def --draft lookup",
    "run decoder def --draft mtp",
    "run decoder def --draft decoder --threads 2",
    "run decoder def --image notes.json --image cat.png --audio talk.wav",
    "run decoder def --adapter lora",
    "run translator a --first de",
    "run translator a --beams 3 --n-best 2 --length-penalty 0.5 --first de",
    f"chat decoder --system Short. -n 4 --stop a --adapter lora {MACHINE}",
    f"chat decoder --no-model-sampling {SAMPLING}",
    f"transcribe translator talk.wav --language de --translate {MACHINE}",
    f"classify labels a b --truncate {MACHINE}",
    "classify labels -",
    "classify images cat.png --image dog.png",
    "classify labels a --labels x,y --template {}! --multi-label --truncate",
    f"embed embedding a - --prompt query --truncate {MACHINE}",
    "embed images --image cat.png",
    "embed embedding --text cat",
    f"answer labels why --context cat.png --allow-none {MACHINE}",
    "answer labels why --context -",
    f"fill labels a --top 3 {MACHINE}",
    "attention labels a -o out.png --threads 1 --layers 0,2 --heads 1 --mean --kind self",
    "attention labels a -o out.png --target b",
    f"bench decoder -p 4 -p 8 -n 2 -d 0 -d 16 -r 3 {MACHINE}",
    "verify decoder",
    f"verify decoder --adapter lora {MACHINE}",
    "card decoder --base-model org/base --license mit --repo me/model",
    "sign decoder --key key.pem",
    "sign decoder --key key.pem --password word",
    "serve decoder",
    "serve a=decoder labels --host 10.0.0.1 --port 1 --insecure --adapter more=lora --slots 2 "
    f"--queue 3 --chunk 16 --fast --cache-mb 5 --cache-folder kept {MACHINE} "
    "--key-file notes.json --allow-host A.Local --allow-origin https://a.example "
    "--root-path /llm/ --request-timeout 7 --shutdown-timeout 2 --log-prompts",
    "train recipe.toml",
    "train recipe.toml out",
    "adapter in out --bundle decoder --checkpoint org/base --force --no-witness",
    "export in out",
    "export in out --precision fp16 --device cuda --max-context 7 --calibration notes.json "
    "--force --revision v1",
    "export in out --precision int4",
    "export in out --precision int4 --group-size 32 --method rtn --head-bits 8 --asymmetric "
    "--effort best",
    "export in out --precision int8 --exclude a* --exclude b --head-bits 8 "
    "--calibration-sequences 3",
    "export in out --precision auto --max-kl 0.05",
    "export in out --precision auto --target-size 1.5",
    "export in out --graphs split --attention portable --prefill-precision int8 --cache int8 "
    "--attention-maps --mtp --allow-cpu-nodes --max-kl 0.5 --proof full --allow-poor --adapter "
    "org/adapter --tokenizer t.json --text-only --via transformers --accept-unknown a "
    "--accept-unknown b.c --no-witness --accept-difference texts --accept-difference chats",
)
"""Command lines; the snapshots have their calls."""

CALLS = (
    *(f"runtime.Encoder.{name}" for name in ("classify", "classify_as", "embed", "answer", "fill")),
    *(f"runtime.Seq2Seq.{name}" for name in ("stream", "generate", "transcribe")),
    "runtime.Decoder.stream",
    "runtime.chat.conversation.Conversation.stream",
    "runtime.bench.measure.measure",
    "runtime.verify",
    "runtime.inspect.card.model_card",
    "runtime.attention_maps.attention_maps",
    "cli.attention_picture.choose",
    "signing.sign",
    "server.run.run",
    "modeling.training.trainer.train",
    "export.adapter.export_adapter",
    "export.pipeline.export",
)
"""Functions that end a command here."""

OTHERS = {
    "adapter": ["export/test_adapter.py"],
    "answer": ["cases/readers.py"],
    "attention": ["cli/test_calls.py", "cli/test_commands.py", "cli/test_mistakes.py"],
    "bench": ["cli/test_bench.py"],
    "cache": ["cli/test_cache.py"],
    "card": ["cli/test_card.py"],
    "chat": ["cli/chat/test_command.py", "cli/test_ready.py"],
    "classify": ["cases/encoders.py"],
    "doctor": ["cli/test_commands.py"],
    "embed": ["cases/encoders.py"],
    "export": ["cli/test_publish.py", "export/layouts/test_genai.py"],
    "export-genai": [
        "cli/test_calls.py",
        "cli/test_bundle_names.py",
        "export/layouts/test_genai.py",
    ],
    "families": ["export/test_coverage.py"],
    "fill": ["cases/readers.py"],
    "inspect": [
        *("cli/test_commands.py", "cli/test_mistakes.py", "cli/test_bundle_names.py"),
        "runtime/verification/test_first_load.py",
    ],
    "pack": ["cli/test_calls.py", "cli/test_commands.py"],
    "publish": ["cli/test_publish.py"],
    "run": ["cli/test_ready.py", "cli/test_commands.py"],
    "serve": ["cli/test_ready.py"],
    "transcribe": ["cli/test_transcribe.py"],
    "verify": ["cli/test_sign.py", "cli/test_commands.py"],
}
"""Tests of options that change no call, and of commands that are not in `LINES`."""

DEFAULTS: tuple[object, ...] = (None, False, (), {}, [])
"""Values that the snapshots leave out."""

UNCHECKED = ("self", "bundle", "bundles", "path", "model", "maps", "progress", "warn", "cancel")
"""Arguments that the snapshots leave out."""


class CalledError(Exception):
    """Ends a command at its call."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Models by the names of their bundles, which are in one folder with other files."""
    folder = tmp_path_factory.mktemp("calls")
    chat_model(folder).bundle.path.rename(folder / "decoder")
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    tiny_encoder.write_bundle(folder / "embedding", kind="embedding")
    tiny_encoder.write_bundle(folder / "images", image=tiny_encoder.IMAGE)
    files = {"notes.json": "{}", "grammar.lark": 'start: "a"', "cat.png": "a cat", "talk.wav": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    translator = object.__new__(Seq2Seq)
    translator.bundle = open_bundle(folder / "decoder")
    loaded = {bundle.parent.name: load(bundle.parent) for bundle in folder.glob("*/manifest.json")}
    return {"translator": translator, **loaded}


@pytest.fixture
def passed(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that a command passes to `load` and to the function that it calls."""
    arguments: dict[str, Any] = {}

    def given(bundle: Path, *_: object, **options: Any) -> Any:
        arguments.update(options)
        return models[f"{bundle}"]

    for name in CALLS:
        place, _, function = f"ortolan.{name}".rpartition(".")
        owner: Any = pkgutil.resolve_name(place)
        original = getattr(owner, function)

        def call(*words: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            bound = inspect.signature(original).bind(*words, **options).arguments
            more = bound.get("options")
            bound |= bound.pop("options") if isinstance(more, dict) else {}
            arguments.update(bound)
            if name == "runtime.attention_maps.attention_maps" and bound["target"] is None:
                return original(*words, **options)  # the panels are chosen afterwards
            arguments["call"] = name
            raise CalledError

        monkeypatch.setattr(owner, function, call)
    monkeypatch.setattr("ortolan.runtime.load", given)
    monkeypatch.setattr(Decoder, "recommended_sampling", Sampling(temperature=0.7))
    monkeypatch.setattr(Encoder, "texts", property(lambda own: own))
    monkeypatch.setenv("ORTOLAN_KEY_PASSWORD", "secret")
    monkeypatch.chdir(models["labels"].bundle.path.parent)
    return arguments


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:80])
def test_a_command_passes_its_options_on(
    line: str, passed: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    done = CliRunner().invoke(cli, line.split(), input="Hi.\n\nHo.\n")
    assert isinstance(done.exception, CalledError), (done.output, done.exception)
    if isinstance(passed.get("self"), Conversation):
        passed["messages"] = passed["self"].messages
    if isinstance(passed.get("draft"), DraftModel):
        passed["draft"] = passed["draft"].model.bundle.path.name
    given = {name: value for name, value in passed.items() if name not in UNCHECKED}
    assert {name: value for name, value in given.items() if value not in DEFAULTS} == snapshot


@pytest.mark.parametrize(
    "line", ["attention labels a -o out.png", "pack labels", "export-genai decoder out --force"]
)
def test_commands_that_open_a_bundle_load_it_in_a_subprocess_first(
    line: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_load = "ortolan.runtime.verification.first_load.pass_first_load"
    monkeypatch.setattr(first_load, Mock(side_effect=CalledError))
    monkeypatch.chdir(models["labels"].bundle.path.parent)
    for more, is_tried in ([], True), (["--no-isolate"], False):
        done = CliRunner().invoke(cli, [*line.split(), *more])
        assert isinstance(done.exception, CalledError) is is_tried, done.output


WORD = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_a_row_or_in_another_test(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    lines = [line for line in LINES if line.startswith(f"{name} ")]
    texts = [*lines, *((TESTS / file).read_text() for file in OTHERS.get(name, ()))]
    tested = {word for text in texts for word in WORD.findall(text)}
    untested = [
        option.opts
        for option in command.params
        if isinstance(option, click.Option) and not tested & {*option.opts, *option.secondary_opts}
    ]
    assert texts
    assert untested == []
