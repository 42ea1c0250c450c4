import json
import tomllib
from importlib.resources import files
from itertools import combinations

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from elinvar.errors import InvalidInput
from elinvar.identity import is_digest
from elinvar.spec import canonical as canonical_module
from elinvar.spec.canonical import (
    ABSENT,
    SCHEMA,
    canonical,
    experiment_digest,
    fill_old_meanings,
    lowest_schema,
    math_digest,
)
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.read import experiment_json, parse_experiment, read, resolve

PLACE = {"length.steps", "data.source"}  # written out here: a change of the rule must be meant
TINY = msgspec.to_builtins(read("tiny").experiment)


def examples(kind):
    """Different values of one type of the spec."""
    match kind:
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.BoolType():
            return [False, True]
        case inspect.StrType():
            return ["text", "other"]
        case inspect.IntType():
            low = 0 if kind.ge is None else int(kind.ge)
            return [value for value in (low, low + 1, low + 6) if kind.le is None or value <= kind.le]
        case inspect.FloatType():
            return [0.25, 0.125, 0.2500000000000001]
        case inspect.NoneType():
            return []
    raise TypeError(kind)


def fields_of(info, path=()):
    """(path, kinds chosen on the way, values) of every leaf, by the structs alone: not by our fields.py."""
    structs = info.types if isinstance(info, inspect.UnionType) else (info,)
    for struct in structs:
        chosen = {path: struct.tag} if struct.tag else {}
        for field in struct.fields:
            kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            here = (*path, field.name)
            if all(isinstance(kind, inspect.StructType) for kind in kinds):
                for leaf, deeper, values in fields_of(field.type, here):
                    yield leaf, {**chosen, **deeper}, values
            else:
                yield here, chosen, [value for kind in kinds for value in examples(kind)]
        if struct.tag and len(structs) > 1:
            yield (*path, "kind"), {}, [other.tag for other in structs]


def built(path, kinds, value):
    """Tiny with the kinds chosen, and `value` at `path`."""
    tree = json.loads(json.dumps(TINY))
    for at, kind in {**kinds, **({path[:-1]: value} if path[-1] == "kind" else {})}.items():
        table = tree
        for name in at[:-1]:
            table = table[name]
        if table[at[-1]]["kind"] != kind:
            table[at[-1]] = {"kind": kind}
    table = tree
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value
    schedule = tree["schedule"]
    if schedule["kind"] == "cosine":
        schedule.setdefault("decay_steps", 100)
    return msgspec.convert(tree, Experiment)


FIELDS = [
    pytest.param(path, kinds, values, id=".".join((*path, *kinds.values())))
    for path, kinds, values in fields_of(inspect.type_info(Experiment))
]


@pytest.mark.parametrize("path, kinds, values", FIELDS)
def test_every_field_of_the_experiment_moves_the_digest_or_is_only_a_place(path, kinds, values):
    if path == ("data", "digest"):
        values = ["0" * 64, "1" * 64]
    if len(values) < 2:
        pytest.skip("one possible value")
    for a, b in combinations(values, 2):
        one, other = built(path, kinds, a), built(path, kinds, b)
        same = experiment_digest(one) == experiment_digest(other)
        assert same == (".".join(path) in PLACE)
        assert parse_experiment(experiment_json(other)) == other


@pytest.mark.parametrize("path, kinds, values", FIELDS)
def test_the_math_digest_ignores_numerics_and_how_the_sequences_are_cut_and_nothing_else(path, kinds, values):
    if path == ("data", "digest"):
        values = ["0" * 64, "1" * 64]
    if len(values) < 2:
        pytest.skip("one possible value")
    same = math_digest(built(path, kinds, values[0])) == math_digest(built(path, kinds, values[1]))
    assert same == (path[0] == "numerics" or ".".join(path) in PLACE)


def test_the_same_sequences_cut_otherwise_are_the_same_math():
    tiny = read("tiny").experiment
    cut = [(8, 2), (16, 1), (1, 16), (4, 4)]
    others = [
        msgspec.structs.replace(
            tiny, batch=msgspec.structs.replace(tiny.batch, microbatches=m, sequences_per_microbatch=s)
        )
        for m, s in cut
    ]
    assert len({math_digest(other) for other in others}) == 1
    assert len({experiment_digest(other) for other in others}) == len(cut)


@pytest.mark.parametrize(
    "path, kinds, values",
    [
        pytest.param(path, kinds, values, id=".".join(path))
        for path, kinds, values in fields_of(inspect.type_info(Execution))
    ],
)
def test_no_field_of_the_execution_moves_a_digest(path, kinds, values):
    digests, executions = set(), set()
    for value in values:
        text = json.dumps(value)
        reading = read("tiny", [f"execution.{'.'.join(path)}={text}"])
        digests.add((experiment_digest(reading.experiment), math_digest(reading.experiment)))
        executions.add(msgspec.json.encode(reading.execution))
    assert len(digests) == 1
    assert len(executions) == len(values) > 1


def test_the_bytes_are_plain_sorted_json():
    tiny = read("tiny").experiment
    data = canonical(tiny)
    tree = json.loads(data)
    assert data == json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    assert experiment_digest(tiny) == blake3(data).hexdigest()
    assert is_digest(math_digest(tiny))
    assert "length" not in tree["experiment"]
    assert "source" not in tree["experiment"]["data"]
    assert tree["experiment"]["optimizer"]["beta1"] == 0.9
    assert tree["experiment"]["schedule"]["decay_steps"] == 300
    assert b"6e-3" not in data and b"0.006" in data


def spelled(data, value):
    """Equal numbers in another form, where a field takes both."""
    if isinstance(value, float) and value.is_integer():
        return data.draw(st.sampled_from([value, int(value)]))
    return value


@given(st.data())
def test_the_digest_sees_no_style(styled_writer, tmp_path, data):
    """Key order, comments, tables inline or not, defaults written or not, 1 or 1.0, a base, the data's place."""
    draw = lambda choices: data.draw(st.sampled_from(choices))  # noqa: E731
    text = (files("elinvar.spec") / "presets" / "tiny.toml").read_text()
    written = tomllib.loads(text)
    full = json.loads(json.dumps(TINY))
    del full["data"]["digest"], full["data"]["format"]
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    (folder / "deep").mkdir(parents=True)
    (folder / "words.txt").write_text("Once more unto the breach.")
    full["data"]["source"] = "words.txt"

    def pruned(tree, own, path=()):
        result = {}
        for name, value in tree.items():
            if isinstance(value, dict):
                result[name] = pruned(value, own.get(name, {}), (*path, name))
                if not result[name] and name not in own:
                    del result[name]
            elif name in own or draw([True, False]):
                result[name] = spelled(data, value)
        return result

    wanted = pruned(full, {**written["experiment"], "schedule": {**written["experiment"]["schedule"]}})
    parent, child = wanted, {}
    if draw([True, False]):
        parent, child = split(wanted, draw)
    (folder / "parent.toml").write_text(styled_writer(draw).document({"experiment": parent}))
    # The parent's source is relative to the parent; a child that repeats it writes it from its own folder.
    if child.get("data", {}).get("source"):
        child["data"]["source"] = "../words.txt"
    child = {"base": "../parent.toml", **({"experiment": child} if child else {})}
    (folder / "deep" / "child.toml").write_text(styled_writer(draw).document(child))
    reading = read(str(folder / "deep" / "child.toml"))
    assert reading.experiment.data.source == str(folder / "words.txt")
    expected = read("tiny", [f"data.source={folder / 'words.txt'}"]).experiment
    assert reading.experiment == expected
    assert experiment_digest(reading.experiment) == experiment_digest(expected)
    (folder / "elsewhere.txt").write_bytes((folder / "words.txt").read_bytes())
    moved = read("tiny", [f"data.source={folder / 'elsewhere.txt'}"]).experiment
    assert experiment_digest(moved) == experiment_digest(expected)


def split(tree, draw):
    """The tree as a parent and a child that only together hold it; kinds stay in the parent."""
    parent, child = {}, {}
    for name, value in tree.items():
        if isinstance(value, dict):
            up, down = split(value, draw)
            parent[name] = up
            if down:
                child[name] = down
        else:
            where = draw(["parent", "child", "both"]) if name != "kind" else "parent"
            if where != "child":
                parent[name] = value
            if where != "parent":
                child[name] = value
    return parent, child


def test_an_integer_for_a_float_and_a_negative_zero_are_one_experiment_from_python_too():
    tiny = read("tiny").experiment
    replaced = [
        msgspec.structs.replace(
            tiny, optimizer=msgspec.structs.replace(tiny.optimizer, max_grad_norm=norm, weight_decay=decay)
        )
        for norm, decay in [(1, 0), (1.0, 0.0), (1.0, -0.0)]
    ]
    assert len({canonical(one) for one in replaced}) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_have_no_digest(bad):
    tiny = read("tiny").experiment
    wrong = msgspec.structs.replace(
        tiny, optimizer=msgspec.structs.replace(tiny.optimizer, max_grad_norm=bad)
    )
    with pytest.raises(InvalidInput, match=r"finite|wrong value"):
        canonical(wrong)


def test_an_experiment_that_is_not_resolved_has_no_digest():
    tiny = read("tiny").experiment
    with pytest.raises(InvalidInput, match=r"data\.digest"):
        experiment_digest(msgspec.structs.replace(tiny, data=msgspec.structs.replace(tiny.data, digest="")))
    schedule = msgspec.structs.replace(tiny.schedule, decay_steps=None)
    open_length = msgspec.structs.replace(tiny, schedule=schedule)
    with pytest.raises(InvalidInput, match=r"schedule\.decay_steps is still open"):
        experiment_digest(open_length)
    assert resolve(open_length, ".") == tiny


def test_a_longer_cosine_run_is_another_experiment_and_a_longer_constant_run_is_not():
    cosine = [experiment_digest(read("tiny", [f"steps={n}"]).experiment) for n in (200, 300)]
    assert cosine[0] != cosine[1]
    kept = read("tiny", ["steps=300", "decay_steps=200"]).experiment
    assert experiment_digest(kept) == cosine[0]
    constant = [
        experiment_digest(read("tiny", ["schedule.kind=constant", f"steps={n}"]).experiment)
        for n in (200, 300)
    ]
    assert constant[0] == constant[1]


def test_old_meanings_keep_old_digests():
    """A field that a later schema adds: holding what its absence meant, it does not show; else the schema rises."""
    absent = {2: {"optimizer.nesterov": False}, 4: {"new": 3, "model.gate": "silu"}}
    old = {"optimizer": {"lr": 1.0}, "model": {}}
    tree = {"optimizer": {"lr": 1.0, "nesterov": False}, "model": {"gate": "silu"}, "new": 3}
    assert lowest_schema(tree, absent) == 1
    assert tree == old
    tree = {"optimizer": {"lr": 1.0, "nesterov": True}, "model": {"gate": "silu"}, "new": 3}
    assert lowest_schema(tree, absent) == 2
    assert tree == {"optimizer": {"lr": 1.0, "nesterov": True}, "model": {}}
    tree = {"optimizer": {"lr": 1.0}, "model": {}}
    fill_old_meanings(tree, 1, absent)
    assert tree == {"optimizer": {"lr": 1.0, "nesterov": False}, "model": {"gate": "silu"}, "new": 3}
    tree = {"optimizer": {"lr": 1.0}, "model": {}}
    fill_old_meanings(tree, 2, absent)
    assert tree == {"optimizer": {"lr": 1.0}, "model": {"gate": "silu"}, "new": 3}
    assert lowest_schema({"objective": 1}, {2: {"objective.z": 0}}) == 1


def test_the_table_of_old_meanings_names_only_later_schemas():
    assert all(1 < version <= SCHEMA for version in ABSENT)


def test_the_digest_of_tiny_is_this_one():
    """Moves only with a new schema or a changed preset: old run folders depend on it."""
    tiny = read("tiny").experiment
    assert experiment_digest(tiny) == "3d567ab1971557b444d1ed4ae7179de160cf3a12d506d598c0af518c8691e4c1"
    assert math_digest(tiny) == "aa948971fc2da9fda11b581095f2162e627e1594abddfd0ead2671cee5a925fe"


def test_experiment_json_names_what_it_holds_and_is_checked():
    tiny = read("tiny").experiment
    data = experiment_json(tiny)
    envelope = json.loads(data)
    assert list(envelope) == ["experiment", "experiment_digest", "math_digest", "schema"]
    assert envelope["schema"] == SCHEMA == 1
    assert envelope["experiment"] == TINY
    assert parse_experiment(data) == tiny
    for change in (
        lambda e: e["experiment"]["optimizer"].update(lr=0.004),
        lambda e: e.update(math_digest="0" * 64),
        lambda e: e.pop("experiment_digest"),
    ):
        changed = json.loads(data)
        change(changed)
        with pytest.raises(InvalidInput, match="digest"):
            parse_experiment(json.dumps(changed).encode())


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "holds no experiment"),
        (b'{"experiment":{},"schema":2}', "schema 2, written by a newer elinvar; this one reads up to 1"),
        (b'{"experiment":{},"schema":true}', "schema True"),
        (b'{"experiment":{},"schema":1}', "valid experiment"),
        (b'{"experiment":{}}', "schema None"),
    ],
)
def test_an_experiment_json_that_is_none_is_refused(data, words):
    with pytest.raises(InvalidInput, match=words):
        parse_experiment(data)


def test_json_bytes_refuse_what_json_has_no_text_for():
    with pytest.raises(ValueError):
        canonical_module.json_bytes({"a": float("inf")})
