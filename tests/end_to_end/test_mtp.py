"""The head that predicts further tokens, from a checkpoint to drafts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import run_here
from tests.modeling.mtp_checkpoints import save_with_head, save_with_right_head
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.refusals import refusal
from tests.tiny.mixtures import GLM4_MOE
from tests.tiny.modern import DEEPSEEK_V3
from tests.tiny.tokenizers import of_characters

import ortolan
from ortolan import Decoder, ExportOptions, MtpHead, PromptLookup, Sampling, load
from ortolan.export.layouts.genai import through_bundle
from ortolan.modeling import load as load_checkpoint
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import BundleFileError
from ortolan.runtime.generation.drafts import HeadDrafter
from ortolan.runtime.verification import probe_runs
from ortolan.runtime.verification.probes import probe_vectors
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

PROMPT = [5, 17, 3, 88, 41, 2, 60, 9, 33, 71, 24, 50]

WITH_HEAD = ExportOptions(mtp=True, allow_poor=True)


class Exported(NamedTuple):
    """A checkpoint, its bundle, and the model that was loaded from it."""

    checkpoint: Path
    bundle: Path
    model: Decoder


def exported(
    root: Path, values: dict[str, Any], save: Callable[..., None] = save_with_head, **options: Any
) -> Exported:
    save(root / "checkpoint", values)
    ortolan.export(root / "checkpoint", root / "bundle", options=WITH_HEAD, **options)
    model = load(root / "bundle", Decoder, threads=1)
    return Exported(root / "checkpoint", root / "bundle", model)


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(tmp_path_factory.mktemp("glm"), GLM4_MOE)


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(tmp_path_factory.mktemp("deepseek"), DEEPSEEK_V3)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    values = GLM4_MOE | {"max_position_embeddings": 512}
    return exported(tmp_path_factory.mktemp("right"), values, save_with_right_head)


@pytest.fixture(params=["glm", "deepseek", "right"])
def either(request: pytest.FixtureRequest) -> Exported:
    model: Exported = request.getfixturevalue(request.param)
    return model


def runner_of(model: Decoder, *, row: int = 0) -> Runner:
    return Runner(model._engine, model._engine.slots(row + 1))


# --- states and guesses -----------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(12,), (5, 6, 12), (1, 2, 11, 12)])
def test_guesses_are_those_of_pytorch(either: Exported, cuts: tuple[int, ...]) -> None:
    module, head = (
        load_checkpoint(either.checkpoint),
        load_checkpoint(mtp_checkpoint(either.checkpoint)),
    )
    expected, tokens = [], [*PROMPT, 45]
    with torch.inference_mode():
        states = module.states(torch.tensor([PROMPT]))
        for _ in range(3):
            pairs = torch.tensor([tokens[1:]])
            own = head.states(pairs, previous_BSE=states)[:, -1:]
            expected.append(int(head.project(own)[0, 0].argmax()))
            states, tokens = torch.cat((states, own), 1), [*tokens, expected[-1]]
    runner, drafter = runner_of(either.model), HeadDrafter(PROMPT)
    assert drafter.propose(3) == []
    for start, end in zip((0, *cuts), cuts, strict=False):
        runner.chunk(0, PROMPT[start:end], positions=[0])
        drafter.observe(start, runner.hidden_SE, runner)
    assert drafter.propose(3) == [], "the token after the last state is not known"
    drafter.extend([45])
    assert drafter.propose(3) == expected
    # the second guess was wrong: the head forgets its own states
    runner.chunk(0, [45, expected[0]], positions=[0])
    drafter.observe(len(PROMPT), runner.hidden_SE, runner)
    drafter.extend([expected[0], 7])
    with torch.inference_mode():
        text = torch.tensor([[*PROMPT, 45, expected[0]]])
        pairs = torch.tensor([[*PROMPT[1:], 45, expected[0], 7]])
        logits = head(pairs, previous_BSE=module.states(text))
    assert drafter.propose(1) == [int(logits[0, -1].argmax())]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_the_head_changes_no_token(either: Exported, sampling: Sampling) -> None:
    plain, drafted = (
        either.model.generate(PROMPT, max_new_tokens=40, sampling=sampling, draft=draft)
        for draft in (PromptLookup(), MtpHead())
    )
    assert drafted.tokens == plain.tokens
    assert drafted.timings.drafted_tokens > 0


@pytest.mark.parametrize("prompt", [PROMPT, [1] * 500], ids=["short", "to the end"])
def test_right_guesses_are_accepted(prompt: list[int], right: Exported) -> None:
    completion = right.model.generate(prompt, max_new_tokens=12, draft=MtpHead())
    timings = completion.timings
    assert timings.accepted_tokens == timings.drafted_tokens >= 5
    assert completion.tokens == right.model.generate(prompt, max_new_tokens=12).tokens


def test_low_bit_bundles_have_a_head(tmp_path: Path) -> None:
    model = exported(tmp_path, GLM4_MOE, save_with_right_head, precision="int8").model
    drafted, plain = (
        model.generate(PROMPT, max_new_tokens=20, draft=draft)
        for draft in (MtpHead(), PromptLookup())
    )
    assert drafted.tokens == plain.tokens
    assert drafted.timings.accepted_tokens > 0


def test_a_head_that_saw_part_of_a_prompt_still_drafts(right: Exported) -> None:
    prompt = (PROMPT * 30)[:300]
    expected = right.model.generate(prompt, max_new_tokens=12).tokens
    with right.model.serve(slots=2, mode="fast") as service:
        for _ in range(2):
            tickets = [
                service.submit(prompt, max_new_tokens=12, draft=draft)
                for draft in (MtpHead(), None, MtpHead())
            ]
            completions = [ticket.result() for ticket in tickets]
            assert [completion.tokens for completion in completions] == [expected] * 3
    timings = completions[0].timings
    assert timings.cached_tokens > 0
    assert timings.accepted_tokens == timings.drafted_tokens > 0


# --- bundles ----------------------------------------------------------------------------------


def test_verify_covers_the_head(glm: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify(glm.bundle)
    assert report.verdict == "PASS"
    assert report.head is not None
    assert report.head.verdict == "PASS"
    assert report.head.weights is not None
    assert report.head.weights.products > 0
    assert report.head.phases.keys() == {"prefill", "decode", "chunked"}
    monkeypatch.setattr(
        probe_runs, "probe_vectors", lambda count, size: -probe_vectors(count, size)
    )
    report = verify(glm.bundle)
    assert report.head is not None
    assert (report.head.verdict, report.verdict) == ("FAIL", "FAIL")


def test_the_head_of_another_bundle_is_refused(
    glm: Exported, right: Exported, tmp_path: Path
) -> None:
    mixed = shutil.copytree(glm.bundle, tmp_path / "mixed")
    shutil.rmtree(mixed / "mtp")
    shutil.copytree(right.bundle / "mtp", mixed / "mtp")
    with pytest.raises(BundleFileError, match="expected the head with the fingerprint"):
        load(mixed, Decoder, threads=1)
    with pytest.raises(BundleFileError, match="expected the head with the fingerprint"):
        verify(mixed)


def test_a_copied_bundle_drafts_without_its_folder(right: Exported, tmp_path: Path) -> None:
    copy = shutil.copytree(right.bundle, tmp_path / "copy")
    model = load(copy, Decoder, threads=1, weights="copy")
    shutil.rmtree(copy)
    completion = model.generate(PROMPT, max_new_tokens=8, draft=MtpHead())
    assert completion.timings.accepted_tokens > 0


def test_a_first_load_opens_the_head(glm: Exported, tmp_path: Path) -> None:
    copy = shutil.copytree(glm.bundle, tmp_path / "copy")
    load(copy, isolate=True, full_check=True)
    weights = next((copy / "mtp").glob("weights-*.bin"))
    data = bytearray(weights.read_bytes())
    data[0] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BundleFileError, match="sha256"):
        load(copy, full_check=True)


def test_on_the_command_line(right: Exported, tmp_path: Path) -> None:
    checkpoint, bundle = str(right.checkpoint), str(tmp_path / "bundle")
    tokenizer = tmp_path / "tokenizer.json"
    of_characters().save(str(tokenizer))
    done = run_here("export", checkpoint, bundle, "--mtp", "--tokenizer", tokenizer)
    assert done.returncode == 0, done.stderr.decode()
    assert b"MtpHead()" in run_here("inspect", bundle).stdout
    plain, drafted = (
        json.loads(
            run_here("run", bundle, "a b c", "--json", "-n", "8", "--ignore-eos", *more).stdout
        )
        for more in ((), ("--draft", "mtp"))
    )
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["timings"]["accepted_tokens"] > plain["timings"]["accepted_tokens"] == 0


def without_head(exported: Exported, folder: Path) -> object:
    """Draft with a bundle that was exported again, without its head."""
    bundle = shutil.copytree(exported.bundle, folder / "bundle")
    ortolan.export(exported.checkpoint, bundle, force=True)
    assert not (bundle / "mtp").exists()
    return load(bundle, Decoder).generate(PROMPT, max_new_tokens=3, draft=MtpHead())


def export_llama(_: Exported, folder: Path) -> object:
    reference_model(LLAMA).save_pretrained(folder / "llama")
    return ortolan.export(folder / "llama", folder / "out", options=WITH_HEAD)


def export_for_genai(_: Exported, folder: Path) -> object:
    with through_bundle(folder / "out", device="cpu", options=WITH_HEAD) as out:
        return out


RECURRENT = Path(__file__).parents[2] / "models" / "copying" / "ntm"

REFUSED: dict[str, Callable[[Exported, Path], object]] = {
    "the head alone": lambda exported, _: load(exported.bundle / "mtp"),
    "no head": without_head,
    "a live module": lambda exported, folder: ortolan.export(
        load_checkpoint(exported.checkpoint), folder / "out", options=WITH_HEAD
    ),
    "a llama": export_llama,
    "a recurrent model": lambda _, folder: ortolan.export(
        RECURRENT, folder / "out", options=WITH_HEAD
    ),
    "as transformers computes it": lambda exported, folder: ortolan.export(
        exported.checkpoint, folder / "out", options=replace(WITH_HEAD, via="transformers")
    ),
    "a folder of onnxruntime-genai": export_for_genai,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_head_is_refused(
    name: str, glm: Exported, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert (
        refusal(lambda: REFUSED[name](glm, tmp_path), tmp_path, RECURRENT, glm.bundle) == snapshot
    )
