import json
from typing import Any

import pytest
from tests.hostile.known_crashes import CRASHES
from tests.hostile.test_fuzz import module


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = module("known_crashes", tmp_path_factory.mktemp("crashes"))
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", CRASHES)
def test_a_crashing_graph_is_refused_before_onnxruntime_sees_it(
    name: str, outcomes: dict[str, Any]
) -> None:
    outcome = outcomes[name]
    assert (outcome["kind"], outcome["stage"]) == ("refused", "open"), outcome
    assert outcome["message"].startswith("GraphError: decoder.onnx")
