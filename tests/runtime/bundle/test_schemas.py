"""The published JSON Schemas against the structs, and against real bundles."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.export import tiny_models
from tests.export.models_of_kinds import encoder_config, module_of, seq2seq_config

import bundle_schemas
import ortolan
from ortolan.export.options import ExportOptions, Int4

MODELS: dict[str, Any] = {
    "decoder": lambda: tiny_models.decoder(tiny_models.llama(layers=1)),
    "encoder": lambda: module_of(encoder_config()),
    "encoder-decoder": lambda: module_of(seq2seq_config()),
}


def checker(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((bundle_schemas.FOLDER / f"{name}.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", bundle_schemas.SCHEMAS)
def test_the_files_are_those_of_the_structs(name: str) -> None:
    written = (bundle_schemas.FOLDER / f"{name}.schema.json").read_bytes()
    assert written == bundle_schemas.schema(name), "run scripts/bundle_schemas.py"


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "decoder" else pytest.mark.slow) for kind in MODELS],
)
def test_bundles_have_the_published_form(kind: str, tmp_path: Path) -> None:
    precision: Any = Int4(method="rtn") if kind == "decoder" else "fp32"
    options = ExportOptions(proof="quick", allow_poor=True)
    bundle = ortolan.export(MODELS[kind](), tmp_path / "b", precision=precision, options=options)
    for name in bundle_schemas.SCHEMAS:
        document = json.loads((bundle.path / f"{name}.json").read_bytes())
        check = checker(name)
        check.validate(document)
        assert not check.is_valid(document | {"surplus": 1})
        assert not check.is_valid(document | {"schema": 9})
        assert not check.is_valid(
            {key: document[key] for key in document if key != "kind"} | {"kind": 3}
        )
