import pytest
from hypothesis import given
from hypothesis import strategies as st

from elinvar.errors import InvalidInput
from elinvar.spec.layers import preset_names, preset_text
from elinvar.spec.read import read


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """The text of the error for a run file with these bytes."""
    monkeypatch.chdir(tmp_path)

    def of(data):
        (tmp_path / "run.toml").write_bytes(data if isinstance(data, bytes) else data.encode())
        with pytest.raises(InvalidInput) as caught:
            read("run.toml")
        return str(caught.value)

    return of


def test_the_presets():
    assert preset_names() == ["small", "tiny"]
    assert preset_text("tiny").startswith("# tiny:")


def test_a_key_written_twice_names_both_lines(refusal):
    text = refusal("[experiment]\nseed = 1\n# seed\nseed = 2\n")
    assert text.startswith("run.toml:4:1: experiment.seed is written twice")
    assert "first at run.toml:2:1" in text
    text = refusal("experiment = { seed = 1, seed = 2 }")
    assert text.startswith("run.toml:1:26: experiment.seed is written twice")
    assert "run.toml:2:2: experiment is written twice" in refusal("[experiment]\n[experiment]\n")


@pytest.mark.parametrize(
    "line", ["seed = ", "seed 1", "seed = 01", 'seed = "a', "[execution", "seed = 1 2", "= 1"]
)
def test_what_is_no_toml_names_its_line(refusal, line):
    text = refusal(f"[experiment]\nlength.steps = 4\n{line}\n")
    assert text.startswith(("run.toml:3:", "run.toml:4:"))
    assert "not TOML" in text


def test_bytes_that_are_no_utf8_name_their_place(refusal):
    text = refusal(b"[experiment]\nseed = 1 # \xe9\n")
    assert text.startswith("run.toml:2: not UTF-8: byte 0xe9 at offset 24")


def test_deep_nesting_is_refused_and_no_crash(refusal):
    assert "nested too deep" in refusal("a = " + "[" * 100_000)


def test_a_byte_order_mark_is_no_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("\ufeff" + preset_text("tiny"), encoding="utf-8")
    assert read("run.toml").experiment == read("tiny").experiment


@pytest.mark.parametrize(
    "source, words",
    [
        ("tinny", ["no preset or run file tinny", "a preset with a similar name exists: tiny"]),
        ("rnu.toml", ["run file rnu.toml does not exist", "a file with a similar name exists: run.toml"]),
        ("no/such/run.toml", ["the folder no/such does not exist"]),
        ("folder.toml", ["folder.toml is a folder, not a run file", "a preset (small, tiny)"]),
        ("", ["the name of the run file is empty"]),
        ("x" * 5000 + ".toml", ["cannot be read: File name too long"]),
        ("run.toml/x.toml", ["does not exist"]),
        ("~nobody-of-this-name/x.toml", ["does not exist"]),
    ],
)
def test_a_source_that_is_none_is_helped(tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidInput) as caught:
        read(source)
    for word in words:
        assert word in str(caught.value)


def test_an_empty_file_says_what_is_missing(refusal):
    assert "table experiment is missing" in refusal("")


def test_a_table_where_a_value_belongs_and_the_other_way_round(refusal):
    assert "experiment.seed cannot be a table" in refusal(
        preset_text("tiny").replace("seed = 0", "seed.x = 0")
    )
    base = 'base = "tiny"\n'
    assert "experiment.batch is a table" in refusal(base + "experiment.batch = 3\n")
    assert "experiment is a table" in refusal(base + "experiment = 3\n")
    assert "execution is a table" in refusal(base + "execution = []\n")
    assert "experiment.model.kind cannot be a table" in refusal(base + "experiment.model.kind.x = 3\n")


def test_a_base_with_a_nul_is_no_file_name(refusal):
    assert "is no file name" in refusal('base = "a\\u0000b.toml"\n')


@given(st.data())
def test_a_damaged_run_file_is_read_or_refused_and_never_a_traceback(tmp_path, data):
    text = preset_text("tiny")
    path = tmp_path / "run.toml"
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = at + data.draw(st.sampled_from([0, 0, 1, 5, 40]))
        text = (
            text[:at]
            + data.draw(st.text(st.sampled_from("\n\r\"'[]{}=.,#9xX\\é\x00"), max_size=4))
            + text[end:]
        )
    path.write_text(text, encoding="utf-8")
    try:
        read(str(path))
    except InvalidInput as error:
        assert str(path) in str(error)


def test_paths_of_a_linked_file_are_relative_to_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "real" / "run.toml").write_text('base = "tiny"\n[experiment.data]\nsource = "words.txt"\n')
    (tmp_path / "run.toml").symlink_to(tmp_path / "real" / "run.toml")
    assert read(str(tmp_path / "run.toml")).experiment.data.source == str(tmp_path / "words.txt")
