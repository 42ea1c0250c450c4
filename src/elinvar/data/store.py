"""The tokens of a data set: built once, checked whenever opened, memory-mapped after.

Nouns: `Store`; window k, which is the T+1 stored tokens from k·T on (so its T targets are the tokens
k·T+1 … k·T+T, and consecutive windows share one token that is a target once). A folder made by
`elinvar data build` must be whole, else Mismatch; a damaged folder of our own cache is moved aside
with a `DamagedCache` warning and built again, because it holds nothing that the source does not.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from elinvar.data import cache, layout
from elinvar.data.build import build_store, tokenizer_recipe
from elinvar.data.source import text_format
from elinvar.data.tokenize import Tokenizer
from elinvar.errors import DoesNotFit, InvalidInput, Mismatch
from elinvar.identity import Digest
from elinvar.spec.data import ByteLevelBpe, Data
from elinvar.spec.data import Tokenizer as Recipe
from elinvar.spec.source import content_digest, is_builtin

_TRIES = 3

DOCUMENT_MARK = "\n─── end of document ───\n"


class DamagedCache(UserWarning):
    """A store in the cache did not agree with its digests, was moved aside and built again."""


@final
class Store:
    """An opened store folder. `tokens` and `documents` are read-only memory maps; nothing here is mutable."""

    def __init__(self, path: Path, manifest: layout.StoreManifest, tokenizer: Tokenizer) -> None:
        self.path = path
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.tokens: NDArray[Any] = np.memmap(path / layout.TOKENS, dtype=manifest.token_dtype, mode="r")
        self.documents: NDArray[np.uint64] = np.memmap(
            path / layout.DOCUMENTS, dtype=layout.DOCUMENT_DTYPE, mode="r"
        )

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> "Store":
        """Open a store folder; with `verify` every byte is read and compared (about 0.3 s of CPU per GB that is in
        the page cache).

        Raises InvalidInput where `path` is no store, Mismatch where it is damaged.
        """
        manifest = layout.read_manifest(path)
        layout.read_origin(path)
        layout.check_sizes(path, manifest)
        tokenizer = layout.read_tokenizer(path, manifest)
        if verify:
            layout.check_content(path, manifest)
        return cls(path, manifest, tokenizer)

    @property
    def digest(self) -> Digest:
        """The name of the data set: a function of its content alone."""
        return self.manifest.digest

    @property
    def origin(self) -> layout.StoreOrigin:
        """What it was made from and with; no part of the digest."""
        return layout.read_origin(self.path)

    @property
    def num_tokens(self) -> int:
        """Stored ids, ends of documents included."""
        return self.manifest.num_tokens

    @property
    def num_bytes(self) -> int:
        """Bytes of text."""
        return self.manifest.num_bytes

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return self.manifest.num_documents

    def num_windows(self, tokens_per_sequence: int) -> int:
        """How many windows of T targets there are; up to T tokens at the end belong to none."""
        return max(self.num_tokens - 1, 0) // tokens_per_sequence

    def window(self, index: int, tokens_per_sequence: int) -> NDArray[Any]:
        """The T+1 stored ids of window `index`, as a read-only view of the map."""
        assert 0 <= index < self.num_windows(tokens_per_sequence), index
        start = index * tokens_per_sequence
        return self.tokens[start : start + tokens_per_sequence + 1]

    def text(self, ids: Sequence[int]) -> str:
        """`ids` as text to look at: an end of a document shows as `DOCUMENT_MARK`."""
        end = self.tokenizer.end_of_document
        parts: list[list[int]] = [[]]
        for index in ids:
            if index == end:
                parts.append([])
            else:
                parts[-1].append(index)
        return DOCUMENT_MARK.join(self.tokenizer.decode(part) for part in parts)

    def document_at(self, position: int) -> int:
        """Which document the stored token at `position` belongs to."""
        return int(np.searchsorted(self.documents, np.uint64(position), side="right")) - 1


def open_store(data: Data, cache_folder: Path | None = None) -> Store:
    """The store of `data`: a folder named by its source, else from the cache, where it is built on first use.

    Raises InvalidInput for bad data, Mismatch for a damaged store folder of the user's, DoesNotFit
    where the cache cannot be written.
    """
    if not is_builtin(data.source) and Path(data.source).is_dir():
        return _open_folder(data)
    source_digest = Digest(data.digest) if data.digest else content_digest(data.source)
    data = _with_digest(data, source_digest)
    root = cache.cache_root() if cache_folder is None else cache_folder
    target = root / "stores" / _key(data)
    # A sound entry needs no lock, so a cache that may only be read serves, too.
    with suppress(Mismatch, InvalidInput, OSError):
        return Store.open(target)
    try:
        with cache.locked(root, target.name):
            return _build_cached(data, target)
    except OSError as error:
        raise cache.cannot_keep(root, error) from None


def create_store(data: Data, out: Path) -> Store:
    """Build the store of `data` at `out`, which must not exist; nothing is left there on failure.

    Raises InvalidInput for bad data or a place that is taken, DoesNotFit where the disk refuses.
    """
    if out.exists():
        raise InvalidInput(f"{out} exists: a store is only built where nothing is", ["choose another folder"])
    if not is_builtin(data.source) and Path(data.source).is_dir():
        raise InvalidInput(f"{data.source} is a folder: a store is built from a file of text")
    data = _with_digest(data, content_digest(data.source))
    try:
        won = cache.publish(out, partial(_build, data))
    except OSError as error:
        raise DoesNotFit(f"cannot build a store at {out}: {error.strerror or error}") from None
    if not won:
        raise InvalidInput(f"{out} exists: another process has just made it")
    return Store.open(out)


def _build_cached(data: Data, target: Path) -> Store:
    """The store at `target`, whose key is locked: as it is, or built where it is missing or damaged.

    Only somebody without the lock (a user who clears the cache) can take it away in between: then
    it is built once more.
    """
    for _ in range(_TRIES):
        if target.exists():
            try:
                return Store.open(target)
            except FileNotFoundError:
                continue
            except (Mismatch, InvalidInput) as damage:
                aside = cache.set_aside(target)
                if aside is not None:
                    warnings.warn(
                        f"{damage.message}; moved to {aside} and built again", DamagedCache, stacklevel=3
                    )
        cache.publish(target, partial(_build, data))
    return Store.open(target)


def _build(data: Data, folder: Path) -> None:
    build_store(data, Digest(data.digest), folder)


def _with_digest(data: Data, digest: Digest) -> Data:
    return msgspec.structs.replace(data, digest=digest)


def _key(data: Data) -> str:
    field = data.text_field if text_format(data) == "jsonl" else ""
    return cache.key_of(
        f"store {layout.SCHEMA}", data.digest, text_format(data), field, tokenizer_recipe(data)
    )


def _open_folder(data: Data) -> Store:
    """A store folder of the user's, which must be the one that `data` describes."""
    path = Path(data.source)
    if data.digest and content_digest(data.source) != data.digest:
        raise InvalidInput(
            f"the store {path} is another one than the experiment names",
            [
                f"experiment.data.digest {data.digest}",
                f"digest of its manifest {content_digest(data.source)}",
            ],
        )
    store = Store.open(path)
    if store.manifest.tokenizer != data.tokenizer:
        raise InvalidInput(
            f"the store {path} was built with another tokenizer than the experiment names",
            [
                f"experiment.data.tokenizer = {_words(data.tokenizer)}",
                f"of the store              = {_words(store.manifest.tokenizer)}",
                "name the store's tokenizer, or build another store: elinvar data build",
            ],
        )
    return store


def _words(recipe: Recipe) -> str:
    if isinstance(recipe, ByteLevelBpe):
        return f'{{kind = "bpe", vocab_size = {recipe.vocab_size}}}'
    return '{kind = "bytes"}'
