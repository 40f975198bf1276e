from pathlib import Path

import numpy as np

import encoding
from rounds import Turn


def turn(folder: Path, peer: str, round: int, vector: list[float], seconds: float) -> Turn:
    path = folder / f"{peer}.npy"
    np.save(path, np.array([[vector]], np.float32))
    return Turn(peer=peer, round=round, request={}, answer={"path": str(path), "seconds": seconds})


def test_row_has_speed_ratio_and_cosine(tmp_path: Path) -> None:
    turns = [
        turn(tmp_path, "ortolan", 0, [1, 1], 0.5),
        turn(tmp_path, encoding.REFERENCE, 0, [1, 0], 1.0),
    ]
    ours, theirs = encoding.rows(turns, 8)
    assert ours == ["ortolan", "16.0", "", f"{0.5**0.5:.5f}"]
    assert theirs == [encoding.REFERENCE, "8.0", "2.00 (2.00-2.00)", "1.00000"]
