import json
import subprocess
from pathlib import Path

import pytest

import peers
import report
import rounds
from peers import PEERS, Peer
from rounds import Program, Run, Worker

STUB = """
from workers.protocol import Generated, serve

def load(model, threads):
    print("libraries print to stdout")
    asked = []
    def generate(prompt, new_tokens):
        if model.name == "dies":
            raise SystemExit(3)
        asked.append(prompt)
        tokens = [len(asked), threads, *prompt][:new_tokens]
        return Generated(tokens=tokens, prefill_s=0.5, decode_s=0.25)
    return generate

serve(load)
"""

REQUEST = {"prompt": [7, 8, 9], "new_tokens": 4}


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stub_worker.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(rounds, "PAUSE_S", 0)


def program(name: str) -> Program:
    python = peers.environment(peers.ORTOLAN) / "python"
    return Program(name=name, python=python, module="stub_worker", model=Path(name), threads=2)


def run(peer: str, number: int, *, prefill_s: float, decode_s: float, tokens: str) -> Run:
    return Run(
        peer=peer,
        round=number,
        tokens=tuple(map(ord, tokens)),
        prefill_s=prefill_s,
        decode_s=decode_s,
        peak_bytes=None,
    )


def test_workers_take_turns_and_every_other_round_is_reversed() -> None:
    runs, loads = rounds.measure([program("a"), program("b")], REQUEST, rounds=3)
    assert [(done.round, done.peer) for done in runs] == [
        *((0, "a"), (0, "b")),
        *((1, "b"), (1, "a")),
        *((2, "a"), (2, "b")),
    ]
    assert set(loads) == {"a", "b"}


def test_warm_up_is_asked_but_not_kept() -> None:
    runs, _ = rounds.measure([program("a")], REQUEST, rounds=2)
    # The stub begins its answer with how often it was asked.
    assert [done.tokens for done in runs] == [(2, 2, 7, 8), (3, 2, 7, 8)]


def test_worker_reports_its_times_and_its_own_peak() -> None:
    with Worker(program("a")) as worker:
        done = worker.ask(REQUEST, round=5)
    assert (done.round, done.prefill_s, done.decode_s) == (5, 0.5, 0.25)
    # This process holds PyTorch; the stub holds a bare interpreter.
    assert done.peak_bytes is not None
    assert 2**20 < done.peak_bytes < 100 * 2**20


def test_worker_that_dies_is_named() -> None:
    with (
        Worker(program("dies")) as worker,
        pytest.raises(RuntimeError, match=r"dies: expected an answer.*status 3"),
    ):
        worker.ask(REQUEST, round=0)


def test_ratios_are_taken_within_rounds() -> None:
    # Round 1 ran while the machine was twice as slow: the ratios do not show it.
    runs = [
        run("a", 0, prefill_s=1.0, decode_s=2.0, tokens="same"),
        run("b", 0, prefill_s=2.0, decode_s=2.0, tokens="same"),
        run("b", 1, prefill_s=4.0, decode_s=6.0, tokens="salt"),
        run("a", 1, prefill_s=2.0, decode_s=4.0, tokens="same"),
    ]
    compared = report.compare(runs, peer="a", other="b")
    assert str(compared.prefill) == "2.00 (2.00-2.00)"
    assert str(compared.decode) == "1.25 (1.00-1.50)"
    assert compared.same_tokens == 2


def test_speeds_are_medians_and_the_first_token_belongs_to_the_prefill() -> None:
    runs = [
        run("a", number, prefill_s=prefill_s, decode_s=0.5, tokens="four")
        for number, prefill_s in enumerate((0.1, 0.2, 9.9))
    ]
    (summary,) = report.summarize(runs, {"a": 1.5}, prompt_tokens=100, new_tokens=4)
    assert summary.prefill_per_s == pytest.approx(500)
    assert summary.decode_per_s == pytest.approx(6)
    assert summary.load_s == 1.5


def test_table_has_as_many_cells_in_each_row() -> None:
    runs = [run(peer, 0, prefill_s=1, decode_s=1, tokens="abcd") for peer in "ab"]
    summaries = report.summarize(runs, {"a": 1, "b": 1}, prompt_tokens=8, new_tokens=4)
    compared = report.compare(runs, peer="a", other="b")
    lines = report.markdown(summaries, [compared], new_tokens=4).splitlines()
    assert [line.count("|") for line in lines] == [9, 9, 9, 9]
    assert lines[3].endswith("| 1.00 (1.00-1.00) | 1.00 (1.00-1.00) | 4/4 |")


def test_document_is_json_without_tokens() -> None:
    runs = [run(peer, 0, prefill_s=1, decode_s=1, tokens="abcd") for peer in "ab"]
    summaries = report.summarize(runs, {"a": 1, "b": 1}, prompt_tokens=8, new_tokens=4)
    compared = report.compare(runs, peer="a", other="b")
    written = json.loads(json.dumps(report.document(runs, summaries, [compared])))
    assert [entry["peer"] for entry in written["runs"]] == ["a", "b"]
    assert "tokens" not in written["runs"][0]
    assert written["comparisons"][0]["prefill"]["median"] == 1


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_entry_has_a_worker_and_pinned_requirements(peer: Peer) -> None:
    assert (rounds.HERE / (peer.worker.replace(".", "/") + ".py")).exists()
    constraints = peers.CONSTRAINTS.read_text().splitlines()
    pinned = {line.partition("==")[0] for line in constraints}
    for requirement in peer.requirements:
        assert "==" in requirement or requirement in pinned


def writer(*code: str, reuse: bool = True) -> Peer:
    return Peer(
        name="writer",
        convert=("{bin}/python", "-c", ";".join(code), "{model}"),
        worker="stub_worker",
        versions=(),
        reuse=reuse,
    )


MAKE = "import pathlib, sys, time; out = pathlib.Path(sys.argv[1]); out.mkdir()"
STAMP = "(out / 'made').write_text(str(time.time_ns()))"


@pytest.mark.parametrize("reuse", [True, False])
def test_converted_model_is_kept_only_if_the_peer_says_so(tmp_path: Path, reuse: bool) -> None:
    peer = writer(MAKE, STAMP, reuse=reuse)
    first, second = (
        (
            peers.converted(peer, tmp_path, tmp_path, precision="fp32", threads=1) / "made"
        ).read_text()
        for _ in range(2)
    )
    assert (first == second) == reuse


def test_interrupted_conversion_leaves_no_model(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        peers.converted(
            writer(MAKE, STAMP, "sys.exit(1)"), tmp_path, tmp_path, precision="fp32", threads=1
        )
    assert not (tmp_path / "writer-fp32").exists()
    whole = peers.converted(writer(MAKE, STAMP), tmp_path, tmp_path, precision="fp32", threads=1)
    assert (whole / "made").exists()


def test_prompt_is_the_same_each_time_and_keeps_off_special_ids(tmp_path: Path) -> None:
    config = {"vocab_size": 10, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    first, second = (peers.make_prompt(tmp_path, tokens=384, new_tokens=128) for _ in range(2))
    assert first == second
    assert set(first) == set(range(3, 10))


def test_prompt_and_answer_beyond_the_context_are_refused(tmp_path: Path) -> None:
    config = {"vocab_size": 10, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"at most 512 tokens in all, got 385 \+ 128"):
        peers.make_prompt(tmp_path, tokens=385, new_tokens=128)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--shape", "tiny", "--checkpoint", "x"], ["--shape", "tiny", "-n", "1"]],
    ids=["no source", "two sources", "no token to decode"],
)
def test_wrong_command_lines_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        peers.parse(arguments)
    assert refused.value.code == 2
