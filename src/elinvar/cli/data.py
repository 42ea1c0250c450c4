"""`elinvar data`: build a store of tokens, show what a source holds, check a store.

Nouns: the group of commands, what a SOURCE may be. `build` makes a new folder and never touches one
that is there; `check` reads every byte.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from elinvar.cli.subject import open_subject
from elinvar.cli.terminal import print_json, print_lines
from elinvar.errors import InvalidInput
from elinvar.spec.data import ByteLevelBpe, Bytes, Data
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import counted
from elinvar.spec.layers import preset_names
from elinvar.spec.source import STORE_MANIFEST, is_builtin, missing_file_hint

DEFAULT_VOCAB_SIZE = 1024


@click.group("data")
def command() -> None:
    """Build, show and check data stores.

    A store holds the tokens of a text, ready to be mapped into memory. Training makes one by itself,
    in the cache ($ELINVAR_CACHE, else ~/.cache/elinvar); build makes one that you keep and name as
    experiment.data.source.
    """


def _reading_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say how a file of text is read."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--text-field", metavar="NAME", help="Field of a JSON line that holds its text (default: text)."
        ),
        click.option(
            "--format",
            "text_format",
            type=click.Choice(["auto", "text", "jsonl"]),
            default="auto",
            help="One document, or one JSON object a line (auto: by the ending .jsonl or .ndjson).",
        ),
        click.option(
            "--vocab-size",
            type=click.IntRange(257, 2**31),
            metavar="N",
            help=f"Token ids of bpe, the end of a document included (default: {DEFAULT_VOCAB_SIZE}).",
        ),
        click.option(
            "--tokenizer",
            type=click.Choice(["bpe", "bytes"]),
            default="bpe",
            help="Byte-pair encoding trained on the text itself, or plain bytes (default: bpe).",
        ),
    ):
        function = option(function)
    return function


@command.command("build")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--from", "source", required=True, metavar="FILE", help="A text or JSON-lines file in UTF-8.")
@_reading_options
def build(
    out: Path,
    source: str,
    tokenizer: str,
    vocab_size: int | None,
    text_format: str,
    text_field: str | None,
    *,
    as_json: bool,
) -> None:
    """Tokenize FILE into a new store folder OUT.

    The same text and tokenizer give the same data set digest, wherever and whenever it is built.
    """
    from elinvar.data.store import create_store

    store = create_store(_data(source, tokenizer, vocab_size, text_format, text_field), out)
    described = _describe(Data(source=str(out), tokenizer=store.manifest.tokenizer), None)
    if as_json:
        print_json(described)
        return
    print_lines(*_lines(described), "", "to train on it, in a run file:", "", "    [experiment.data]")
    print_lines(
        f'    source = "{out}"', "    [experiment.data.tokenizer]", *_toml_lines(described["tokenizer"])
    )


@command.command("show")
@click.argument("subject", metavar="FILE|RUN.toml|PRESET|STORE|DIR")
@_reading_options
def show(
    subject: str,
    tokenizer: str,
    vocab_size: int | None,
    text_format: str,
    text_field: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what the data hold.

    That is: documents, bytes, tokens, windows, digests.

    The options belong to a plain FILE; a run file, preset, store or run folder says them itself.
    """
    plain = {
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "format": text_format,
        "text_field": text_field,
    }
    data, experiment = _what(subject, plain)
    described = _describe(data, experiment)
    if as_json:
        print_json(described)
    else:
        print_lines(*_lines(described))


@command.command("check")
@click.argument("path", metavar="STORE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(path: Path, *, as_json: bool) -> None:
    """Compare a store folder with its digests.

    Reads every byte. Damage ends with exit code 4.
    """
    from elinvar.data.inspect import check_store
    from elinvar.data.store import Store

    store = Store.open(path)
    check_store(store)
    if as_json:
        print_json({"store": str(path), "digest": store.digest, "tokens": store.num_tokens, "ok": True})
    else:
        print_lines(
            f"{path} is whole: {counted(store.num_documents, 'document')}, {counted(store.num_tokens, 'token')}",
            f"digest    {store.digest}",
        )


def _data(
    source: str, tokenizer: str, vocab_size: int | None, text_format: str, text_field: str | None
) -> Data:
    """A source as the options read it."""
    if tokenizer == "bytes" and vocab_size is not None:
        raise InvalidInput(
            f"--vocab-size {vocab_size} does not go with --tokenizer bytes, which always has 257 ids"
        )
    recipe = Bytes() if tokenizer == "bytes" else ByteLevelBpe(vocab_size=vocab_size or DEFAULT_VOCAB_SIZE)
    given = {"source": source, "format": text_format, "tokenizer": msgspec.to_builtins(recipe)}
    if text_field is not None:
        given["text_field"] = text_field
    return msgspec.convert(given, Data)


def _what(subject: str, plain: dict[str, Any]) -> tuple[Data, Experiment | None]:
    """The data that `subject` names, and the experiment around them where there is one."""
    from elinvar.data.layout import read_manifest

    path = Path(subject)
    a_run = subject in preset_names() or path.suffix == ".toml"
    a_store = not a_run and (path / STORE_MANIFEST).is_file()
    if not (a_run or a_store or path.is_dir()) and (is_builtin(subject) or path.exists()):
        return (
            _data(subject, plain["tokenizer"], plain["vocab_size"], plain["format"], plain["text_field"]),
            None,
        )
    if not (a_run or path.exists()):
        raise InvalidInput(
            f"{subject} does not exist",
            [
                *missing_file_hint(path),
                f"allowed: a text file, a run file, a preset ({', '.join(preset_names())}), a store, a run folder",
            ],
        )
    if plain != {"tokenizer": "bpe", "vocab_size": None, "format": "auto", "text_field": None}:
        raise InvalidInput(f"the options say how a file of text is read, but {subject} is none")
    if a_store:
        return Data(source=subject, tokenizer=read_manifest(path).tokenizer), None
    experiment = open_subject(subject).experiment
    return experiment.data, experiment


def _describe(data: Data, experiment: Experiment | None) -> dict[str, Any]:
    from elinvar.data.feed import Feed
    from elinvar.data.inspect import ids_used
    from elinvar.data.store import open_store

    store = open_store(data)
    described: dict[str, Any] = {
        "source": data.source,
        "digest": store.digest,
        "source_digest": store.origin.source_digest,
        "tokenizer": msgspec.to_builtins(store.manifest.tokenizer),
        "tokenizer_digest": store.manifest.tokenizer_digest,
        "documents": store.num_documents,
        "bytes": store.num_bytes,
        "tokens": store.num_tokens,
        "bytes_per_token": store.num_bytes / store.num_tokens,
        "vocab_size": store.tokenizer.vocab_size,
        "ids_used": ids_used(store),
        "dtype": store.manifest.dtype,
        "store": str(store.path),
        "windows": None,
    }
    if experiment is not None:
        feed = Feed(store, experiment)
        described["windows"] = {
            "tokens": experiment.batch.tokens_per_sequence,
            "total": feed.order.split.num_samples,
            "held_out": feed.order.split.held_out,
            "training": feed.order.epoch_length,
            "steps_per_epoch": feed.order.epoch_length / experiment.batch.sequences,
            "epochs": experiment.length.steps * experiment.batch.sequences / feed.order.epoch_length,
        }
    return described


def _lines(described: dict[str, Any]) -> list[str]:
    recipe = described["tokenizer"]
    lines = [
        f"source      {described['source']}",
        f"documents   {described['documents']:,}",
        f"bytes       {described['bytes']:,}",
        f"tokens      {described['tokens']:,}   {described['bytes_per_token']:.3f} bytes each   {described['dtype']}",
        f"tokenizer   {recipe['kind']}   {described['vocab_size']:,} ids, {described['ids_used']:,} of them used",
    ]
    windows = described["windows"]
    if windows is not None:
        lines += [
            f"windows     {windows['total']:,} of {counted(windows['tokens'], 'token')}",
            f"  held out  {windows['held_out']:,}, and {windows['training']:,} to train on",
            f"epoch       {windows['steps_per_epoch']:,.1f} steps; the run takes {windows['epochs']:.2f} epochs",
        ]
    return [
        *lines,
        f"digest      {described['digest']}",
        f"  source    {described['source_digest']}",
        f"  tokenizer {described['tokenizer_digest']}",
        f"store       {described['store']}",
    ]


def _toml_lines(recipe: dict[str, Any]) -> list[str]:
    return [
        f'    {key} = "{value}"' if isinstance(value, str) else f"    {key} = {value}"
        for key, value in recipe.items()
    ]
