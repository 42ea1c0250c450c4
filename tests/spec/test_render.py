import tomllib

import pytest

from elinvar.spec.canonical import experiment_digest
from elinvar.spec.read import read
from elinvar.spec.render import run_file_text


@pytest.mark.parametrize(
    "source, overrides",
    [
        ("tiny", []),
        ("small", ["schedule.kind=constant", "tokenizer.kind=bytes", "ranks=auto", "machine=cpu-2"]),
        ("tiny", ["lr=1e-7", "eps=1", "rope_theta=5e5", "seed=9223372036854775807"]),
        ("tiny", ['text_field="a\\"b\\\\c#\'é"']),
    ],
)
@pytest.mark.parametrize("with_origins", [False, True])
def test_the_text_reads_back_to_the_same_values(tmp_path, source, overrides, with_origins):
    reading = read(source, overrides)
    origins = reading.origins if with_origins else None
    text = run_file_text(reading.experiment, reading.execution, reading.machine, origins)
    path = tmp_path / "run.toml"
    path.write_text(text)
    again = read(str(path))
    assert (again.experiment, again.execution, again.machine) == (
        reading.experiment,
        reading.execution,
        reading.machine,
    )
    assert experiment_digest(again.experiment) == experiment_digest(reading.experiment)


def test_origins_stand_behind_each_line_and_only_there():
    reading = read("tiny", ["lr=0.25"])
    text = run_file_text(reading.experiment, reading.execution, None, reading.origins)
    assert tomllib.loads(text) == tomllib.loads(run_file_text(reading.experiment, reading.execution))
    (line,) = [line for line in text.split("\n") if line.startswith("lr = ")]
    assert line.split("#")[1].strip() == "override lr=0.25"
    assert all(("#" in line) == (" = " in line) for line in text.split("\n"))
