import msgspec
from msgspec import NODEFAULT, Struct, inspect

from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.fields import Leaf, Table, all_paths, run_file, walk


def test_a_default_inside_a_table_is_that_of_its_struct():
    """Else an absent table and an empty one would be different experiments."""

    def visit(info):
        for struct in info.types if isinstance(info, inspect.UnionType) else (info,):
            for field in struct.fields:
                if isinstance(field.default, Struct):
                    assert field.default == type(field.default)()
                if isinstance(field.type, inspect.StructType) or (
                    isinstance(field.type, inspect.UnionType)
                    and all(isinstance(one, inspect.StructType) for one in field.type.types)
                ):
                    visit(field.type)

    visit(inspect.type_info(Experiment))
    visit(inspect.type_info(Execution))


def test_the_paths_are_those_of_the_structs():
    paths = all_paths()
    assert paths[0] == "experiment"
    for path in (
        "experiment.seed",
        "experiment.schedule.kind",
        "execution.checkpoint.keep",
        "experiment.model",
    ):
        assert path in paths
    assert len(paths) == len(set(paths))


def test_tables_that_need_a_choice_have_no_default_kind():
    tables = {path: field for path, field in walk(run_file(), ()) if isinstance(field, Table)}
    assert tables["experiment.schedule"].default_kind == "constant"
    assert tables["experiment.optimizer"].default_kind is None
    assert tables["experiment.optimizer"].required
    assert not tables["execution"].required


def test_every_field_is_of_a_type_that_the_reader_checks():
    known = (
        inspect.IntType,
        inspect.FloatType,
        inspect.BoolType,
        inspect.StrType,
        inspect.LiteralType,
        inspect.NoneType,
    )
    for path, field in walk(run_file(), ()):
        if isinstance(field, Leaf):
            assert all(isinstance(kind, known) for kind in field.types), path
            assert field.default is NODEFAULT or msgspec.to_builtins(field.default) == field.default
