import json
import tomllib

import jsonschema
import pytest

from elinvar.spec.layers import preset_names, preset_text
from elinvar.spec.read import read
from elinvar.spec.render import run_file_text
from elinvar.spec.schema import run_file_schema

VALIDATOR = jsonschema.Draft202012Validator(run_file_schema())


def test_it_is_a_schema_and_json():
    jsonschema.Draft202012Validator.check_schema(run_file_schema())
    assert json.loads(json.dumps(run_file_schema(), allow_nan=False)) == run_file_schema()


@pytest.mark.parametrize("preset", preset_names())
def test_run_files_are_valid_written_short_or_out(preset):
    VALIDATOR.validate(tomllib.loads(preset_text(preset)))
    reading = read(preset)
    VALIDATOR.validate(tomllib.loads(run_file_text(reading.experiment, reading.execution)))
    VALIDATOR.validate({"base": "tiny", "execution": {"ranks": "auto"}})


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"base": 3},
        {"base": "tiny", "experimant": {}},
        {"base": "tiny", "experiment": {"optimizer": {"wieght_decay": 0.2}}},
        {"base": "tiny", "experiment": {"length": {"steps": 0}}},
        {"base": "tiny", "experiment": {"length": {"steps": 1.5}}},
        {"base": "tiny", "experiment": {"optimizer": {"lr": True}}},
        {"base": "tiny", "experiment": {"schedule": {"kind": "constant", "decay_steps": 3}}},
        {"base": "tiny", "experiment": {"numerics": {"precision": "bf61"}}},
        {"base": "tiny", "execution": {"sharding": 2}},
        {"base": "tiny", "execution": {"ranks": "all"}},
    ],
)
def test_what_the_reader_refuses_in_one_value_the_schema_refuses(tree):
    assert not VALIDATOR.is_valid(tree)
