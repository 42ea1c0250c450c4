"""What a user installs: versions that exist everywhere, a wheel with its data, an import without a warning."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import elinvar

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def canonical_name(requirement):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_constraints_are_plain_pins_that_every_index_has():
    for line in CONSTRAINTS.splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), (
                line
            )  # no local version, hash or address
    assert "\ntorch==2.13.0\n" in CONSTRAINTS


def test_every_requirement_is_pinned_and_has_a_floor_and_no_ceiling():
    pinned = set(re.findall(r"^([a-z0-9-]+)==", CONSTRAINTS, re.MULTILINE))
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for line in [*PROJECT["dependencies"], *extras]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+", line), line
        assert canonical_name(line) in pinned


def test_every_dependency_has_a_written_reason():
    text = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8")
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for line in [*PROJECT["dependencies"], *extras]:
        assert re.search(rf"^\| {canonical_name(line)} \|", text, re.MULTILINE), line


def test_the_version_is_written_once_a_place_and_equal():
    assert PROJECT["version"] == elinvar.__version__
    assert f"## {elinvar.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_import_warns_of_nothing():
    code = "import elinvar, sys; assert not {'torch', 'numpy', 'msgspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "elinvar").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= names
    assert "elinvar/data/shakespeare.txt.xz" in names
    assert "elinvar/spec/presets/tiny.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size <= 3 * 2**20
