"""The reference pages are what the code says: regenerate with `python tools/build_reference.py`."""

import importlib.util
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"

_spec = importlib.util.spec_from_file_location("build_reference", ROOT / "tools" / "build_reference.py")
build_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build_reference)


@pytest.fixture(scope="module")
def pages():
    return build_reference.pages()


def test_every_generated_page_is_on_disk_as_generated(pages):
    stale = [
        name
        for name, text in pages.items()
        if not (REFERENCE / name).exists() or (REFERENCE / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, "run: python tools/build_reference.py"


def test_no_schema_is_left_over(pages):
    assert {f"schemas/{path.name}" for path in (REFERENCE / "schemas").iterdir()} == {
        name for name in pages if name.startswith("schemas/")
    }


def test_every_schema_is_valid_json_schema():
    for path in (REFERENCE / "schemas").glob("*.json"):
        Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))
