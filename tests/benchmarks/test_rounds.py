from pathlib import Path

import numpy as np
import pytest

import catalog
import prepare
import rounds
from rounds import Program, Worker

STUB = """
import numpy as np
from workers.protocol import Engine, Generated, serve

def load(start):
    print("libraries print to stdout")
    requests = []
    def generate(prompt, new_tokens):
        if start.model.name == "dies":
            raise SystemExit(3)
        requests.append(prompt)
        tokens = [len(requests), start.threads, *prompt][:new_tokens]
        return Generated(tokens=tokens, prefill_s=0.5, decode_s=0.25)
    def logits(ids):
        rows = ids[-1:] if "PRUNED" in start.options else ids
        return np.outer(rows, [1, 2])
    return Engine(generate=generate, logits=logits)

serve(load)
"""

REQUEST = {"prompt": [7, 8, 9], "new_tokens": 4}


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stub_worker.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(rounds, "PAUSE_S", 0)


def program(folder: Path, name: str, *options: str) -> Program:
    return Program(
        name=name,
        python=prepare.environment(catalog.ORTOLAN) / "python",
        module="stub_worker",
        model=folder / name,
        threads=2,
        options=options,
        log=folder / "log",
    )


def test_workers_take_turns_and_every_other_round_is_reversed(tmp_path: Path) -> None:
    programs = [program(tmp_path, name) for name in "ab"]
    runs, loaded = rounds.measure(programs, [REQUEST], rounds=2, starts=2)
    assert [(run.round, run.peer) for run in runs] == [
        *((0, "a"), (0, "b")),
        *((1, "b"), (1, "a")),
        *((2, "b"), (2, "a")),
        *((3, "a"), (3, "b")),
    ]
    # The stub's first token counts its requests: 1 was the warm-up, and a start has a new worker.
    assert [run.tokens for run in runs if run.peer == "a"] == [(2, 2, 7, 8), (3, 2, 7, 8)] * 2
    assert list(loaded) == ["a", "b"]


def test_worker_reports_its_times_and_its_own_peak(tmp_path: Path) -> None:
    (done,), _ = rounds.measure([program(tmp_path, "a")], [REQUEST], rounds=1)
    assert (done.prefill_s, done.decode_s) == (0.5, 0.25)
    # This process holds PyTorch; the stub holds NumPy.
    assert done.peak_bytes is not None
    assert 2**20 < done.peak_bytes < 100 * 2**20


def test_worker_that_dies_is_reported_with_its_log(tmp_path: Path) -> None:
    with (
        Worker(program(tmp_path, "dies")) as worker,
        pytest.raises(RuntimeError, match=r"dies: .*status 3.*log"),
    ):
        worker.answer(REQUEST)


def test_logits_are_a_row_for_each_id(tmp_path: Path) -> None:
    path = tmp_path / "logits.npy"
    with Worker(program(tmp_path, "a")) as worker:
        logits = worker.logits((4, 5), path)
    assert logits.dtype == np.float32
    assert logits.tolist() == [[4, 8], [5, 10]]
    with (
        Worker(program(tmp_path, "a", "PRUNED=yes")) as worker,
        pytest.raises(RuntimeError, match=r"shape \(1, 2\) for 2 tokens"),
    ):
        worker.logits((4, 5), path)
