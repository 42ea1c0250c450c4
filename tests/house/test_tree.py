"""ARCHITECTURE.md prints the tree of the package; it equals the disk, and each file has its meaning there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "elinvar"
LINE = re.compile(r"^(?P<indent> *)(?P<name>[\w.-]+/?)(?:  +(?P<meaning>\S.*))?$")


def printed():
    """{path relative to src/elinvar: meaning} of the block that begins with `src/elinvar/`."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = next(
        part for part in re.findall(r"```\n(.*?)```", text, re.DOTALL) if part.startswith("src/elinvar/")
    )
    found, folders = {}, []
    for line in block.splitlines()[1:]:
        match = LINE.match(line)
        assert match, f"cannot read this line of the tree: {line!r}"
        depth = len(match["indent"]) // 2
        assert len(match["indent"]) == 2 * depth >= 2, f"two blanks a level: {line!r}"
        folders = folders[: depth - 1]
        path = "/".join([*folders, match["name"].rstrip("/")])
        if match["name"].endswith("/"):
            folders.append(match["name"].rstrip("/"))
        assert path not in found, f"twice in the tree: {path}"
        found[path] = match["meaning"]
    return found


def on_disk():
    """Every file and folder of the package; a folder without modules is one line of the tree."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.name not in ("__init__.py", "__pycache__") and (path.parent / "__init__.py").exists()
    }


def test_the_tree_is_the_disk():
    tree, disk = set(printed()), on_disk()
    assert tree - disk == set(), "in ARCHITECTURE.md, not on disk"
    assert disk - tree == set(), "on disk, not in ARCHITECTURE.md"


def test_every_file_has_a_meaning():
    assert [path for path, meaning in printed().items() if not meaning] == []


def test_every_test_mirrors_a_package_or_stands_apart():
    apart = {"house", "laws", "drills", "golden", "__pycache__"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - apart
    assert folders <= {path.name for path in SOURCE.iterdir() if path.is_dir()}
