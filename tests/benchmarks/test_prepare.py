import json
from pathlib import Path

import pytest

import peers
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


def writer(*code: str, reuse: bool = True) -> Peer:
    return Peer(
        name="writer",
        convert={"fp32": ("{bin}/python", "-c", ";".join(code), "{model}")},
        worker="stub_worker",
        versions=(),
        reuse=reuse,
    )


def convert(peer: Peer, folder: Path) -> Path:
    checkpoint = Checkpoint(name="checkpoint", path=folder / "checkpoint", random=False)
    return prepare.program(peer, checkpoint, folder, precision="fp32", threads=1).model


MAKE = "import pathlib, sys, time; out = pathlib.Path(sys.argv[1]); out.mkdir()"
STAMP = "(out / 'made').write_text(str(time.time_ns()))"


@pytest.mark.parametrize("reuse", [True, False])
def test_converted_model_is_reused_only_if_the_peer_allows_it(tmp_path: Path, reuse: bool) -> None:
    peer = writer(MAKE, STAMP, reuse=reuse)
    first, second = ((convert(peer, tmp_path) / "made").read_text() for _ in range(2))
    assert (first == second) == reuse


def test_interrupted_conversion_leaves_no_model(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"writer: .*status 1\. See .*writer-fp32\.log"):
        convert(writer(MAKE, "print('half way')", "sys.exit(1)"), tmp_path)
    folder = tmp_path / "checkpoint"
    assert not (folder / "writer-fp32").exists()
    assert (folder / "writer-fp32.log").read_text() == "half way\n"
    assert (convert(writer(MAKE, STAMP), tmp_path) / "made").exists()


def test_a_prompt_is_reproducible_and_fits_the_context(tmp_path: Path) -> None:
    config = {"vocab_size": 10, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    first, second = (peers.make_prompt(tmp_path, tokens=384, new_tokens=128) for _ in range(2))
    assert first == second
    assert set(first) == set(range(3, 10))  # without the special ids 0 to 2
    with pytest.raises(ValueError, match=r"512 tokens, less than 385 \+ 128"):
        peers.make_prompt(tmp_path, tokens=385, new_tokens=128)
