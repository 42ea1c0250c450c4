"""Packages import only packages that stand before them; imports inside functions count; no cycles.

Reading commands, and everything that only reads a record, must load neither torch nor numpy.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "elinvar"

FIRST = ("errors", "identity", "trace")
ORDER = (
    *("spec", "record", "plan", "numerics", "data", "model", "optimizer", "parallel", "adapter", "train"),
    *("checkpoint", "serve", "rollout", "run", "verify", "report", "export", "studio", "cli"),
)
# Readers see the record, never the machinery that wrote it.
ONLY = {"report": {"spec", "record", "plan"}, "export": {"record"}, "studio": {"report", "record"}}


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(path):
    """Every module of ours that a file imports anywhere, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "elinvar"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer"
            if node.module and node.module.split(".")[0] == "elinvar":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found.add(inner if inner in MODULES else node.module)
    return found


GRAPH = {name: imports(path) - {name} for name, path in MODULES.items()}


def layer(module):
    return module.split(".")[1] if "." in module else ""


def test_every_import_of_ours_exists():
    missing = {
        (name, target) for name, targets in GRAPH.items() for target in targets if target not in MODULES
    }
    assert not missing


def test_every_package_stands_in_the_order():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(ORDER)
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"} == set(FIRST)


def wrong_imports(graph):
    """Every import against the order, as (importer, imported, rule)."""
    for name, targets in graph.items():
        own = layer(name)
        if own in ("", "__main__"):
            continue  # `elinvar` itself is checked below; `__main__` hands over to cli
        for target in targets:
            other = layer(target)
            if own in FIRST:
                if target != "elinvar":
                    yield name, target, f"{' '.join(FIRST)} stand alone"
            elif other and other not in FIRST and other != own:
                if ORDER.index(other) > ORDER.index(own):
                    yield name, target, "it stands after"
                if other not in ONLY.get(own, {other}):
                    yield name, target, f"{own} reads only {sorted(ONLY[own])}"


def test_a_module_imports_only_what_stands_before_it():
    assert list(wrong_imports(GRAPH)) == []


def test_the_package_itself_imports_nothing_of_ours():
    assert GRAPH["elinvar"] == set()


def test_no_cycle_counting_imports_inside_functions():
    # A package's __init__ runs before each of its modules, so importing a module is importing both.
    TopologicalSorter(GRAPH).prepare()


LIGHT = ("spec", "record", "plan", "report")


def loaded(code):
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_reads_a_record_loads_neither_torch_nor_numpy():
    light = [name for name in MODULES if layer(name) in (*FIRST, *LIGHT)]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        "print(*sorted({'torch', 'numpy', 'transformers', 'plotly'} & set(sys.modules)))"
    )
    assert loaded(code) == []


def test_every_command_module_loads_without_torch():
    commands = [name for name in MODULES if layer(name) == "cli"]
    code = (
        "import importlib, sys\n"
        f"for name in {commands!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = sorted({'torch', 'transformers', 'plotly'} & set(sys.modules))\n"
        "    if heavy: print(name, *heavy); break\n"
    )
    assert loaded(code) == []


def test_the_checks_see_what_they_should(tmp_path):
    """The instruments themselves: a function-level import, a module imported from its package, a cycle."""
    file = tmp_path / "sample.py"
    file.write_text("def f():\n    from elinvar.plan import plan\n    import elinvar.errors\n")
    assert imports(file) == {"elinvar.plan.plan", "elinvar.errors"}
    assert list(wrong_imports({"elinvar.plan.x": {"elinvar.run.y", "elinvar.spec.z", "elinvar.errors"}})) == [
        ("elinvar.plan.x", "elinvar.run.y", "it stands after")
    ]
    assert len(list(wrong_imports({"elinvar.report.x": {"elinvar.model.y"}}))) == 1
    assert len(list(wrong_imports({"elinvar.identity": {"elinvar.spec.data"}}))) == 1
    with pytest.raises(ValueError, match="cycle"):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
