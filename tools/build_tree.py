"""Writes the tree of the package into ARCHITECTURE.md: each file with the first sentence of its docstring."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "elinvar"
PAGE = ROOT / "ARCHITECTURE.md"
ORDER = (
    *("spec", "record", "plan", "numerics", "data", "model", "optimizer", "parallel", "adapter", "train"),
    *("checkpoint", "serve", "rollout", "run", "verify", "report", "export", "studio", "cli"),
)
MEANINGS = {
    "assets": "style and script of the page",
    "presets": "run files that come with the package",
    "py.typed": "says that the package is typed",
    "shakespeare.md": "where the corpus comes from",
    "shakespeare.txt.xz": "the embedded corpus: 38 plays",
    "shakespeare-bpe-1024.json": "its tokenizer, trained beforehand",
}


def first_sentence(path):
    """The first sentence of a module's docstring, without its full stop and on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<!et al)(?<=[\w`)\"])\. |\.$", text, maxsplit=1)[0]


def meaning(path):
    if path.name in MEANINGS:
        return MEANINGS[path.name]
    if (path / "__init__.py").exists():
        return first_sentence(path / "__init__.py")
    if path.suffix == ".py":
        return first_sentence(path)
    raise SystemExit(f"{path}: give it a meaning in {Path(__file__).name}")


def entries(folder, depth):
    """(depth, name, meaning) of everything in a folder; files in a folder of files by name."""
    listed = [path for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    packages = {name: place for place, name in enumerate(ORDER)}
    for path in sorted(listed, key=lambda path: (path.is_dir(), packages.get(path.name, 0), path.name)):
        yield depth, path.name + ("/" if path.is_dir() else ""), meaning(path)
        if (path / "__init__.py").exists():
            yield from entries(path, depth + 1)


def tree():
    rows = list(entries(SOURCE, 1))
    width = max(2 * depth + len(name) for depth, name, _ in rows) + 2
    return "src/elinvar/\n" + "".join(f"{'  ' * depth + name:<{width}}{text}\n" for depth, name, text in rows)


def main():
    text = PAGE.read_text(encoding="utf-8")
    new, count = re.subn(r"```\nsrc/elinvar/\n.*?```", lambda _: f"```\n{tree()}```", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE} has {count} blocks that begin with src/elinvar/; expected 1")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
