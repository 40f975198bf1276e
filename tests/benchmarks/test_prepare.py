from pathlib import Path

import pytest

import prepare
import rounds
from catalog import PEERS, PRECISIONS, Peer
from prepare import Checkpoint


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_entry_has_a_worker_and_pinned_requirements(peer: Peer) -> None:
    assert (rounds.HERE / (peer.worker.replace(".", "/") + ".py")).exists()
    constraints = prepare.CONSTRAINTS.read_text().splitlines()
    pinned = {line.partition("==")[0] for line in constraints}
    for requirement in peer.requirements:
        assert "==" in requirement or requirement in pinned
    assert set(peer.convert) <= set(PRECISIONS)


def test_a_pinned_requirement_overrides_the_constraint() -> None:
    assert "\ntransformers==" in prepare.constraints_for(["torch", "transformers"])
    constraints = prepare.constraints_for(["torch", "transformers==5.5.4"])
    assert "\ntransformers==" not in constraints
    assert "torch==" in constraints


def writer(*code: str, reuse: bool = True) -> Peer:
    return Peer(
        name="writer",
        convert={"fp32": ("{bin}/python", "-c", ";".join(code), "{model}"), "int4": ()},
        worker="stub_worker",
        versions=(),
        reuse=reuse,
    )


def convert(peer: Peer, folder: Path, precision: str = "fp32") -> Path:
    checkpoint = Checkpoint(name="checkpoint", path=folder / "checkpoint", random=False)
    return prepare.program(peer, checkpoint, folder, precision=precision, threads=1).model


MAKE = "import pathlib, sys, time; out = pathlib.Path(sys.argv[1]); out.mkdir()"
STAMP = "(out / 'made').write_text(str(time.time_ns()))"


@pytest.mark.parametrize("reuse", [True, False])
def test_converted_model_is_reused_only_if_the_peer_allows_it(tmp_path: Path, reuse: bool) -> None:
    peer = writer(MAKE, STAMP, reuse=reuse)
    first, second = ((convert(peer, tmp_path) / "made").read_text() for _ in range(2))
    assert (first == second) == reuse


def test_peer_without_a_command_loads_the_checkpoint_itself(tmp_path: Path) -> None:
    assert convert(writer(), tmp_path, "int4") == tmp_path / "checkpoint"


def test_interrupted_conversion_leaves_no_model(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"writer: .*status 1\. See .*writer-fp32\.log"):
        convert(writer(MAKE, "print('half way')", "sys.exit(1)"), tmp_path)
    folder = tmp_path / "checkpoint"
    assert not (folder / "writer-fp32").exists()
    assert (folder / "writer-fp32.log").read_text() == "half way\n"
    assert (convert(writer(MAKE, STAMP), tmp_path) / "made").exists()
