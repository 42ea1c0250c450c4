"""What the tests of data share: a small text, and an experiment around it."""

import pytest

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.spec.data import Bytes, Data
from elinvar.spec.experiment import Batch, Experiment, Length
from elinvar.spec.model import Llama
from elinvar.spec.optimizer import AdamW
from elinvar.spec.schedule import Constant


def experiment_of(data, *, microbatches=3, sequences=2, tokens=16, seed=7, vocab_size=512):
    return Experiment(
        seed=seed,
        length=Length(steps=10),
        model=Llama(
            vocab_size=vocab_size,
            hidden_size=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            intermediate_size=8,
        ),
        data=data,
        batch=Batch(
            microbatches=microbatches, sequences_per_microbatch=sequences, tokens_per_sequence=tokens
        ),
        optimizer=AdamW(lr=1e-3),
        schedule=Constant(),
    )


def write_lines(path, num_documents=9):
    lines = [
        f'{{"text": "Document {number}: {"word " * (number * 7 % 23)}é."}}' for number in range(num_documents)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    return Data(source=str(write_lines(tmp_path / "small.jsonl")), tokenizer=Bytes(), held_out=5)


@pytest.fixture
def feed(data):
    return Feed(open_store(data), experiment_of(data))
