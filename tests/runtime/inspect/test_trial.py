import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.runtime import tiny_decoder
from tests.runtime.isolation.stand_ins import replace_step

from ortolan.cli.inspect import command
from ortolan.runtime import FirstLoadError, open_bundle, verify
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.inspect.trial import try_load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    return open_bundle(tiny_decoder.write_bundle(tmp_path / "bundle").path)


def test_a_trial_says_how_the_first_load_went(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert try_load(bundle).outcome == "passed"
    replace_step(monkeypatch, "from ortolan.runtime import GraphError; raise GraphError('no')")
    refused = try_load(bundle)
    assert (refused.outcome, refused.text) == ("refused", "no")
    replace_step(monkeypatch, "import os; os.abort()")
    assert try_load(bundle).outcome == "ended"
    verify(bundle.path, exact=False, isolate=False)
    assert try_load(bundle).outcome == "ended"


def test_a_trial_starts_no_process_for_what_was_verified(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(bundle.path, exact=False)
    replace_step(monkeypatch, "import os; os.abort()")
    assert try_load(bundle).outcome == "verified"


def test_inspect_describes_a_bundle_that_cannot_be_loaded_and_then_fails(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_step(monkeypatch, "import os; os.abort()")
    shown = CliRunner().invoke(command, [str(bundle.path)])
    assert "first load     FAILED, as said below\n" in shown.output
    assert isinstance(shown.exception, FirstLoadError)
    shown = CliRunner().invoke(command, [str(bundle.path), "--json"])
    assert json.loads(shown.output)["first_load"]["outcome"] == "ended"
    assert isinstance(shown.exception, FirstLoadError)
    shown = CliRunner().invoke(command, [str(bundle.path), "--json", "--no-isolate"])
    assert json.loads(shown.output)["first_load"] is None
    assert shown.exception is None
