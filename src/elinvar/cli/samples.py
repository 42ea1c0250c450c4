"""`elinvar samples`: which samples a step consumed, and which steps saw a sample.

Nouns: the consumption of a step, the sightings of a sample. Both are computed from the order and its
inverse, so they cost the same for step 5 and step 5,000,000; the ledger, which holds what the ranks
really consumed, is compared with them. Steps that have not run have no answer.
"""

from pathlib import Path
from typing import Any, NamedTuple

import click

from elinvar.cli.terminal import print_json, print_lines, print_table
from elinvar.errors import InvalidInput, Mismatch
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import LedgerRow, effective, ids_digest
from elinvar.spec.experiment import Batch
from elinvar.spec.explain import counted

_PREVIEW_CHARS = 64


@click.command("samples")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(min=1), metavar="N", help="List the samples that step N consumed."
)
@click.option("--sample", metavar="ID", help="List the steps that saw a sample: its index, or DIGEST:INDEX.")
@click.option("--text", is_flag=True, help="Print each sample's whole text.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(folder: Path, step: int | None, sample: str | None, *, text: bool, as_json: bool) -> None:
    """Say which samples a step saw, and which steps saw a sample, exactly.

    A sample is a window of the data, named by its index (printed by --step).
    """
    if (step is None) == (sample is None):
        raise InvalidInput("one of --step N and --sample ID is needed, and not both")
    run = _Run(folder)
    if step is not None:
        answer = run.consumed(step)
        _print_consumed(answer, as_json=as_json, text=text)
    elif sample is not None:
        answer = run.sightings(sample)
        _print_sightings(answer, as_json=as_json, text=text)


class _Place(NamedTuple):
    step: int
    microbatch: int
    position: int
    epoch: int


class _Run:
    """A run folder with its data opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder.open(folder)  # first: a wrong folder is refused before the imports
        from elinvar.data.feed import Feed
        from elinvar.data.store import open_store

        experiment = self.folder.experiment()
        self.rows: dict[int, LedgerRow] = {row.step: row for row in effective(self.folder.ledger()[0])}
        if not self.rows:
            raise InvalidInput(f"{folder} has no finished step yet")
        self.feed = Feed(open_store(experiment.data), experiment)
        self._check_dataset()

    @property
    def last_step(self) -> int:
        """The last step whose consumption is recorded."""
        return max(self.rows)

    def consumed(self, step: int) -> dict[str, Any]:
        """What `step` consumed, in order. Mismatch where the ledger says otherwise."""
        row = self.rows.get(step)
        if row is None:
            raise InvalidInput(
                f"step {step} has not run: {self.folder.path} has steps {min(self.rows)} to {self.last_step}"
            )
        size = self.feed.batch.sequences
        first = (step - 1) * size
        occurrences = self.feed.order.occurrences(first, first + size)
        recorded = ids_digest(occurrence.sample.index for occurrence in occurrences) == row.ids_digest
        if not recorded or (row.position, row.count) != (first, size):
            raise Mismatch(
                f"step {step} consumed other samples than its experiment says",
                [
                    f"ledger: {row.count} from position {row.position}, ids {row.ids_digest}",
                    f"order:  {size} from position {first}",
                ],
            )
        per_leaf = self._batch_of(row.attempt).sequences_per_microbatch
        return {
            "step": step,
            "attempt": row.attempt,
            "dataset": self.feed.store.digest,
            "ids_digest": row.ids_digest,
            "samples": [
                {
                    "microbatch": number // per_leaf,
                    "position": occurrence.position,
                    "epoch": occurrence.epoch,
                    "sample": occurrence.sample.index,
                    "text": self.feed.text(occurrence.sample.index),
                }
                for number, occurrence in enumerate(occurrences)
            ],
        }

    def _batch_of(self, number: int) -> Batch:
        """The cut into microbatches of that attempt, which may be another one that was accepted as same math."""
        attempts = [attempt for attempt in self.folder.attempts() if attempt.attempt == number]
        return self.folder.experiment_of(attempts[-1] if attempts else None).batch

    def sightings(self, sample: str) -> dict[str, Any]:
        """Every step up to the last that saw `sample`."""
        index = self._index(sample)
        held_out = self.feed.order.split.is_held_out(index)
        places = [] if held_out else self._places(index)
        return {
            "sample": index,
            "dataset": self.feed.store.digest,
            "held_out": held_out,
            "last_step": self.last_step,
            "seen": [place._asdict() for place in places],
            "text": self.feed.text(index),
        }

    def _places(self, index: int) -> list[_Place]:
        batch, order = self.feed.batch, self.feed.order
        places = []
        num_positions = self.last_step * batch.sequences
        for epoch in range(-(-num_positions // order.epoch_length)):
            position = order.position(index, epoch)
            step = position // batch.sequences + 1
            if position < num_positions and step in self.rows:
                leaf = position % batch.sequences // batch.sequences_per_microbatch
                places.append(_Place(step, leaf, position, epoch))
        return places

    def _index(self, sample: str) -> int:
        digest, _, number = sample.rpartition(":")
        if not (number.isascii() and number.isdigit()) or (digest and len(digest) < 4):
            raise InvalidInput(
                f"{sample!r} names no sample", ["expected an index, as in 17, or the data set too: DIGEST:17"]
            )
        if not self.feed.store.digest.startswith(digest):
            raise InvalidInput(
                f"{self.folder.path} has not learned from data set {digest}",
                [f"its data set is {self.feed.store.digest}"],
            )
        index = int(number)
        if index >= self.feed.order.split.num_samples:
            raise InvalidInput(
                f"the data set has no sample {index}",
                [f"allowed: 0 to {self.feed.order.split.num_samples - 1}"],
            )
        return index

    def _check_dataset(self) -> None:
        """The data opened now must be those that the attempts have learned from."""
        for event in self.folder.events()[0]:
            used = event.data.get("dataset") if event.kind == "start" else None
            if used is not None and used != self.feed.store.digest:
                raise Mismatch(
                    f"the data of {self.folder.path} are not those that attempt {event.attempt} learned from",
                    [
                        f"then {used}",
                        f"now  {self.feed.store.digest}",
                        "likely another release of the tokenizers library trained the tokenizer",
                    ],
                )


def _preview(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS else line[: _PREVIEW_CHARS - 1] + "…"


def _print_consumed(answer: dict[str, Any], *, as_json: bool, text: bool) -> None:
    if as_json:
        print_json(answer)
        return
    rows = answer["samples"]
    print_lines(
        f"step {answer['step']} consumed {counted(len(rows), 'sample')} (attempt {answer['attempt']}; as the ledger says)"
    )
    print_table(
        ["microbatch", "position", "epoch", "sample", "text begins"],
        [
            [
                str(row["microbatch"]),
                str(row["position"]),
                str(row["epoch"]),
                str(row["sample"]),
                _preview(row["text"]),
            ]
            for row in rows
        ],
        right=(0, 1, 2, 3),
    )
    if text:
        for row in rows:
            print_lines("", f"── sample {row['sample']} ──", row["text"])


def _print_sightings(answer: dict[str, Any], *, as_json: bool, text: bool) -> None:
    if as_json:
        print_json(answer)
        return
    index = answer["sample"]
    if answer["held_out"]:
        print_lines(f"sample {index} is held out: no step sees it, every evaluation does")
    elif not answer["seen"]:
        print_lines(f"no step up to {answer['last_step']} saw sample {index}")
    else:
        times = counted(len(answer["seen"]), "time")
        print_lines(f"sample {index} was seen {times} up to step {answer['last_step']}")
        print_table(
            ["step", "microbatch", "position", "epoch"],
            [[str(value) for value in place.values()] for place in answer["seen"]],
            right=(0, 1, 2, 3),
        )
    print_lines("", answer["text"] if text else f"text begins  {_preview(answer['text'])}")
