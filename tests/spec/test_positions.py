import tomllib

from hypothesis import example, given
from hypothesis import strategies as st

from elinvar.spec.positions import marks, positions

KEYS = st.text(st.sampled_from('ab_-1.# ="[]{}é\\'), min_size=1, max_size=4)
TEXTS = st.text(st.sampled_from("ab \n#=[]{}\"'\\,.é"), max_size=12)
LEAVES = st.one_of(st.integers(-5, 5), st.booleans(), st.sampled_from([0.5, 1e-8]), TEXTS)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
TREES = st.dictionaries(KEYS, VALUES, max_size=5)


@given(TREES, st.data())
def test_every_key_stands_where_the_writer_put_it(styled_writer, tree, data):
    writer = styled_writer(lambda choices: data.draw(st.sampled_from(choices)))
    text = writer.document(tree)
    assert tomllib.loads(text) == tree
    assert positions(text) == writer.places


def test_windows_line_ends_and_a_byte_order_do_not_move_lines():
    text = '[a]\r\nb = """x\r\ny"""\r\nc = 1\r\n'
    assert positions(text)[("a", "c")] == (4, 1)


def test_arrays_of_tables_count():
    text = "[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\nd = 3\n"
    assert tomllib.loads(text) == {"a": [{"b": 1}, {"b": 2, "c": {"d": 3}}]}
    found = positions(text)
    assert found[("a", 0, "b")] == (2, 1)
    assert found[("a", 1, "b")] == (4, 1)
    assert found[("a", 1, "c", "d")] == (6, 1)


def test_a_multi_line_string_may_end_in_quotes():
    for quote in "\"'":
        for extra in range(3):
            text = f"a = {quote * 3}x{quote * (3 + extra)}\nb = 1\n"
            assert tomllib.loads(text) == {"a": "x" + quote * extra, "b": 1}
            assert positions(text) == {("a",): (1, 1), ("b",): (2, 1)}


@given(st.text(st.sampled_from("ab=[]{}\"'\n#., \\1"), max_size=40))
@example("a = [1")
@example('"a')
@example("[a")
@example("a = {b = ")
@example("= 1")
@example("[]")
def test_on_text_that_is_no_toml_the_scanner_ends(text):
    marks(text)
