import json
from typing import Any

import pytest
from tests.hostile.found import FOUND
from tests.hostile.test_fuzz import module


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = module("found", tmp_path_factory.mktemp("found"))
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", FOUND)
def test_deadly_graph_is_refused_before_onnxruntime_sees_it(
    name: str, outcomes: dict[str, Any]
) -> None:
    outcome = outcomes[name]
    assert (outcome["kind"], outcome["stage"]) == ("refused", "open"), outcome
    assert outcome["said"].startswith("GraphError: decoder.onnx: expected")
