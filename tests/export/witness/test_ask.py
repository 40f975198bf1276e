"""The witness's bounds: memory, time, and sources that transformers reads in another way or not."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.modeling.tiny_models import reference_model
from tests.tiny import tokenizers
from tests.tiny.decoders import LLAMA

import ortolan
from ortolan.export.errors import WitnessError
from ortolan.export.exportable import Exportable
from ortolan.export.options import DEFAULTS, ExportOptions
from ortolan.export.source import open_exportable
from ortolan.export.witness import ask as asking
from ortolan.export.witness import child, depth, publisher
from ortolan.export.witness.ask import ask
from ortolan.export.witness.brief import Brief
from ortolan.export.witness.shallow import least_layers
from ortolan.modeling.checkpoint import adapter as adapter_reader
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.runtime.bundle.witness import Agreement, Witness
from ortolan.runtime.machine.python_process import python_process

ALIKE = LLAMA | {"num_hidden_layers": 4}

IN_TURN = ALIKE | {
    "model_type": "qwen3",
    "use_sliding_window": True,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@dataclass(frozen=True)
class Tiny:
    """A checkpoint, and a bundle that was exported from it."""

    checkpoint: Path
    bundle: Path

    @property
    def model(self) -> Exportable:
        return open_exportable(self.checkpoint, DEFAULTS)

    def ask(self, source: Any = None, model: Exportable | None = None, **options: Any) -> Witness:
        return ask(
            self.bundle,
            self.checkpoint if source is None else source,
            self.model if model is None else model,
            ExportOptions(**options),
            elapsed_s=0.0,
        )


def write(folder: Path, values: dict[str, Any], **options: Any) -> Tiny:
    checkpoint = folder / "checkpoint"
    reference_model(values).save_pretrained(checkpoint)
    tokenizer = tokenizers.of_texts(["[UNK]", "[CLS]", "[SEP]"], values["vocab_size"])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(kind))
    ortolan.export(checkpoint, folder / "bundle", **options)
    return Tiny(checkpoint, folder / "bundle")


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Four layers of one kind."""
    return write(tmp_path_factory.mktemp("alike"), ALIKE)


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Four layers of two kinds, exported in 8 bits."""
    return write(tmp_path_factory.mktemp("in_turn"), IN_TURN, precision="int8")


@pytest.fixture(scope="module")
def with_rounded_cache(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    options = ExportOptions(cache="int8")
    return write(tmp_path_factory.mktemp("rounded"), ALIKE, options=options)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer in this process, which must not get a limit of memory."""
    monkeypatch.setattr(child, "_limit", lambda _: None)
    monkeypatch.setattr(asking, "run", lambda brief, *_: child.answers(brief))


@pytest.fixture
def free(here: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the free memory to a share of what a checkpoint of four layers and its bundle need."""

    def set_to(share: float) -> None:
        monkeypatch.setattr(publisher, "LIBRARIES", 0)
        whole = depth.float32_bytes(reference_model(ALIKE))
        monkeypatch.setattr(asking, "MEMORY_SHARE", share)
        monkeypatch.setattr(asking, "available_memory", lambda: whole)

    return set_to


def by_topic(witness: Witness) -> dict[str, Agreement]:
    return {topic.topic: topic for topic in witness.topics}


def changed(tiny: Tiny, folder: Path, **values: Any) -> Path:
    """The same checkpoint with another config.json."""
    shutil.copytree(tiny.checkpoint, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return folder


def test_a_subprocess_asks_about_the_whole_model(
    alike: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "witness_limit", lambda _: 300.0)  # other tests run besides
    with asking.beforehand(alike.checkpoint, DEFAULTS, is_long=False) as started:
        assert started is not None
        witness = ask(alike.bundle, alike.checkpoint, alike.model, DEFAULTS, child=started)
        assert started.process.wait() == 0  # it was this one that answered
    topics = by_topic(witness)
    assert witness.layers is None
    assert topics["logits"].agreed == topics["logits"].questions == 4
    assert topics["completions"].agreed == 2
    assert topics["texts"].agreed == topics["texts"].questions > 60
    assert (witness.by or "").startswith("transformers 5.")


@pytest.mark.parametrize(
    ("name", "layers"), [("alike", 1), pytest.param("in_turn", 2, marks=pytest.mark.slow)]
)
def test_first_layers_are_asked_about_where_the_whole_does_not_fit(
    name: str, layers: int, free: Callable[[float], None], request: pytest.FixtureRequest
) -> None:
    tiny: Tiny = request.getfixturevalue(name)
    free(0.8)
    witness = tiny.ask()
    topics = by_topic(witness)
    assert witness.layers == layers
    assert topics["logits"].agreed == topics["logits"].questions == 4
    assert 0 < (topics["logits"].largest or 0) < 2e-4
    assert f"on the first {'layer' if layers == 1 else '2 layers'}:" in witness.summary
    if name == "alike":
        assert topics["completions"].unasked == "it was loaded without its last layers"


def test_first_layers_are_asked_about_where_time_is_short_for_the_whole(
    alike: Tiny, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "SMALL", 0)
    monkeypatch.setattr(asking, "witness_limit", lambda _: 0.0)
    witness = alike.ask()
    assert witness.layers == 1
    assert by_topic(witness)["logits"].agreed == 4


def test_first_layers_that_differ_reject_the_bundle(
    alike: Tiny, free: Callable[[float], None], tmp_path: Path
) -> None:
    model = alike.model
    other = changed(alike, tmp_path / "other", rms_norm_eps=1e-2)
    free(0.8)
    with pytest.raises(WitnessError, match="differently: logits, 1 token: "):
        alike.ask(other, model)


def test_no_model_is_loaded_where_one_layer_does_not_fit(
    alike: Tiny, free: Callable[[float], None]
) -> None:
    free(0.1)
    witness = alike.ask()
    topics = by_topic(witness)
    assert (topics["logits"].unasked or "").startswith("its model needs 0.0 GB (free: 0.0 GB)")
    assert topics["logits"].questions == topics["completions"].questions == 0
    assert topics["texts"].agreed == topics["texts"].questions > 60


def test_a_rounded_cache_is_no_difference(with_rounded_cache: Tiny, here: None) -> None:
    topics = by_topic(with_rounded_cache.ask())
    assert topics["logits"].agreed == 4
    assert "completions" not in topics


@pytest.mark.filterwarnings("ignore")  # PEFT warns of tied weights, and uses deprecated names
@pytest.mark.parametrize("scale", [1.0, 1.05], ids=["right", "wrong"])
def test_an_adapter_is_read_by_peft(
    tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    base = reference_model(ALIKE | {"tie_word_embeddings": True, "num_hidden_layers": 1})
    base.save_pretrained(tmp_path / "base")
    config: Any = peft.LoraConfig(target_modules=["q_proj", "embed_tokens"], r=2)
    trained: Any = peft.get_peft_model(base, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.normal_(0, 0.2) if parameter.requires_grad else None
    trained.save_pretrained(str(tmp_path / "adapter"))
    read = adapter_reader._scale
    monkeypatch.setattr(adapter_reader, "_scale", lambda *values: scale * read(*values))
    options = ExportOptions(adapter=tmp_path / "adapter")
    ortolan.export(tmp_path / "base", tmp_path / "bundle", options=options)
    model = open_exportable(tmp_path / "base", options)
    if scale == 1.0:
        witness = ask(tmp_path / "bundle", tmp_path / "base", model, options, elapsed_s=0.0)
        assert by_topic(witness)["logits"].agreed == 4
        assert by_topic(witness)["completions"].questions > 0
    else:
        with pytest.raises(WitnessError, match="differently: logits"):
            ask(tmp_path / "bundle", tmp_path / "base", model, options, elapsed_s=0.0)


def test_a_checkpoint_that_was_opened_and_its_name_in_a_cache(
    alike: Tiny, here: None, tmp_path: Path
) -> None:
    cached = tmp_path / "models--some--name"
    shutil.copytree(alike.checkpoint, cached / "snapshots" / "main")
    for source in (open_checkpoint(alike.checkpoint), cached):
        assert by_topic(alike.ask(source))["logits"].agreed == 4


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "unheard_of", "architectures": ["UnheardOf"]}, "cannot load config.json"),
        (
            {
                "model_type": "unheard_of",
                "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
            },
            "cannot load config.json",
        ),
    ],
    ids=["unknown type", "code of its own"],
)
def test_types_that_transformers_does_not_know(
    alike: Tiny, here: None, tmp_path: Path, values: dict[str, Any], reason: str
) -> None:
    model = alike.model
    witness = alike.ask(changed(alike, tmp_path / "other", **values), model)
    topics = by_topic(witness)
    assert reason in (topics["logits"].unasked or "")
    assert witness.summary.count("cannot load") == 1


def test_without_transformers_nobody_is_asked(alike: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "find_spec", lambda _: None)
    assert alike.ask().summary == "nobody else was asked: transformers is not installed"


def test_an_old_transformers_is_not_asked(alike: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "version", lambda _: "4.57.1")
    assert alike.ask().summary == "nobody else was asked: transformers 4.57.1 is older than 5"


def test_a_transformers_that_cannot_be_imported_is_not_asked(
    alike: Tiny, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortolan.export.witness.publisher", None)
    summary = alike.ask().summary
    assert summary.startswith("nobody else was asked: transformers cannot be imported (import of")


def test_no_process_is_started_that_would_wait_for_long_or_for_nothing(alike: Tiny) -> None:
    silent = ExportOptions(witness=False)
    for source, options, is_long in (
        (alike.checkpoint, DEFAULTS, True),
        (alike.checkpoint, silent, False),
        (alike.model.module, DEFAULTS, False),
    ):
        with asking.beforehand(source, options, is_long=is_long) as started:
            assert started is None


def answer_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Run another program in place of the subprocess."""

    @contextmanager
    def other(*_: str, **options: Any) -> Iterator[Any]:
        with python_process("-c", program, **options) as process:
            yield process

    monkeypatch.setattr("ortolan.export.witness.ask.python_process", other)


FINDINGS = """
import os, sys, time
print('{"topic":"","by":"transformers 5","plan":["texts","logits"]}', flush=True)
print('{"topic":"texts","by":"transformers 5","questions":2,"agreed":2}', flush=True)
"""

ONE_LOGIT = """
finding = '{"topic":"logits","by":"transformers 5","questions":1,"agreed":1,"is_whole":false}'
print(finding, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("time.sleep(60)", "stopped after 1 s: logits not asked"),
        (ONE_LOGIT + "time.sleep(60)", "stopped after 1 s: the rest of logits not asked"),
        (
            "os.kill(os.getpid(), 9)",
            "the system ended its process, perhaps for want of memory: logits not asked",
        ),
        ("raise MemoryError", "its process failed: MemoryError: logits not asked"),
        ("", None),
    ],
    ids=["too slow", "too slow within a topic", "killed", "fails", "done"],
)
def test_what_was_answered_counts_however_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, end: str, reason: str | None
) -> None:
    answer_with(monkeypatch, FINDINGS + end)
    started = time.monotonic()
    findings = list(asking.run(Brief(bundle="", checkpoint=""), 1.0))
    assert time.monotonic() - started < 20
    witness = asking.judged(findings, ())
    assert by_topic(witness)["texts"].agreed == 2
    assert [finding.unasked for finding in findings if finding.topic == "rest"] == (
        [] if reason is None else [reason]
    )


def test_the_time_includes_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, "import time; time.sleep(60)")
    witness = asking.judged(list(asking.run(Brief(bundle="", checkpoint=""), 1.0)), ())
    assert witness.summary == "nobody else was asked: stopped after 1 s"


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: Error code 12 (Cannot allocate memory)")],
    ids=["Python", "PyTorch"],
)
def test_a_model_that_takes_too_much_memory_is_not_asked(
    alike: Tiny, here: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(publisher, "load_floats", fail)
    topics = by_topic(alike.ask())
    assert topics["logits"].unasked == "not enough memory for the model"
    assert topics["texts"].questions > 60


def test_a_recurrent_model_has_no_shorter_one() -> None:
    model = open_exportable(Path(__file__).parents[3] / "models" / "copying" / "ntm")
    assert least_layers(model) is None
