"""The table of model types: complete, sorted, and as measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.cases.comparison import compare, save_tiny
from tests.tiny import FAMILY_CONFIGS, OWN_FORMATS

import families_table
import ortolan
from ortolan.cli.checkpoints import families_command
from ortolan.export.coverage import BOUND, Coverage, Row, decode, encode, read_coverage
from ortolan.modeling.families import FAMILIES


def row(**values: Any) -> Row:
    given: dict[str, Any] = {
        "model_type": "llama",
        "way": "family",
        "kind": "decoder",
        "error": 1e-6,
        "tokens_equal": True,
    }
    return Row(**given | values)


def test_every_family_has_a_tiny_config_and_a_row_within_the_bound() -> None:
    supported = {r.model_type for r in read_coverage().rows if r.way == "family" and r.supported}
    published = FAMILIES.keys() - OWN_FORMATS
    assert published - FAMILY_CONFIGS.keys() == set()
    assert published - supported == set(), "run scripts/families_table.py --only TYPE"


def test_document_is_written_from_the_data() -> None:
    written = families_table.markdown(read_coverage())
    assert families_table.DOCUMENT.read_text() == written, "run scripts/families_table.py --render"


@pytest.mark.parametrize(
    ("values", "supported"),
    [
        ({}, True),
        ({"error": BOUND}, True),
        ({"error": 1.1 * BOUND}, False),
        ({"error": None, "tokens_equal": None}, False),
        ({"tokens_equal": False}, False),
        ({"tokens_equal": None}, True),
    ],
)
def test_type_is_supported_within_the_bound_and_with_equal_tokens(
    values: dict[str, Any], supported: bool
) -> None:
    assert row(**values).supported is supported


def test_data_is_sorted_and_reads_back() -> None:
    rows = (row(way="transformers"), row(), row(model_type="bert", note="a | b"))
    read = decode(encode(Coverage(transformers="5", rows=rows)))
    assert read.rows == (rows[2], rows[1], rows[0])
    assert read.counts() == {"family": 2, "transformers": 1}
    assert read.of("llama") == (rows[1], rows[0])


def test_row_that_is_measured_again_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families_table, "DATA_FILE", tmp_path / "data.json")
    monkeypatch.setattr(families_table, "DOCUMENT", tmp_path / "families.md")
    for error in (1e-3, 2e-6):
        families_table.merge(row(error=error))
        families_table.merge(row(way="transformers", error=None, note="no attention"))
    (ours, theirs) = decode((tmp_path / "data.json").read_bytes()).rows
    assert (ours.error, theirs.note) == (2e-6, "no attention")
    assert (
        "| `llama` | decoder | 2.0e-06 | no | no attention |"
        in (tmp_path / "families.md").read_text()
    )


def test_command_lists_every_row() -> None:
    coverage = read_coverage()
    listed = json.loads(CliRunner().invoke(families_command, ["--json"]).stdout)
    assert len(listed["rows"]) == len(coverage.rows)
    text = CliRunner().invoke(families_command).stdout
    assert f"supported: {coverage.counts()['family']} by their family" in text
    assert all(r.model_type in text for r in coverage.rows)
    one = CliRunner().invoke(families_command, ["gpt2"]).stdout.splitlines()
    assert one[1].split()[:2] == ["gpt2", "decoder"]
    done = CliRunner().invoke(families_command, ["gpt2", "mambo"])  # which was never tried
    assert done.exit_code != 0
    assert "mambo" in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "weight"),
    [
        ("gpt2", "transformer.h.1.ln_2.bias"),
        ("bert", "bert.encoder.layer.1.attention.self.key.weight"),
        ("marian", "model.decoder.layers.1.encoder_attn.v_proj.bias"),
    ],
)
def test_comparison_sees_a_weight_that_differs(
    model_type: str, weight: str, tmp_path: Path
) -> None:
    model = save_tiny(FAMILY_CONFIGS[model_type], tmp_path / "source", spread=0.2)
    ortolan.export(tmp_path / "source", tmp_path / "bundle")
    found = compare(tmp_path / "source", tmp_path / "bundle")
    assert found.error <= 1e-5
    assert found.tokens_equal is not False
    with torch.no_grad():
        dict(model.named_parameters())[weight].add_(5)
    model.save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="the bundle gives"):
        compare(tmp_path / "source", tmp_path / "bundle")
