"""`elinvar sample`: let the model of a run folder continue a prompt."""

import codecs
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import Struct, to_builtins

from elinvar.cli.terminal import print_json, print_text
from elinvar.errors import InvalidInput
from elinvar.record.folder import RunFolder
from elinvar.run.progress import say


class Continuation(Struct, frozen=True, kw_only=True):
    """What `--json` prints; `text` and `tokens` are what follows the prompt."""

    prompt: str
    text: str
    tokens: list[int]
    step: int
    seed: int


class Settings(Struct, frozen=True, kw_only=True):
    """How tokens are drawn; the options and `model.generate` check the ranges."""

    num_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


@click.command("sample")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("prompt")
@click.option(
    "--tokens", type=click.IntRange(min=0), default=200, show_default=True, help="Tokens to draw at most."
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.8,
    show_default=True,
    help="0: always the most likely token.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Draw among the K most likely; 0: among all.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    show_default=True,
    help="Draw among the likeliest that hold P together.",
)
@click.option("--seed", default=0, show_default=True, help="Equal seeds draw equal text.")
@click.option("--at", type=int, metavar="STEP", help="The generation of this step, not the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, when all is drawn.")
def command(
    folder: Path,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    at: int | None,
    as_json: bool,
) -> None:
    """Print PROMPT and what the run's model writes after it.

    The newest generation that verifies is used. An empty prompt ("") begins a new document. The
    text ends early where the model ends its document. Texts longer than the sequences that the
    model was trained on are allowed, and get worse beyond them.
    """
    settings = Settings(num_tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    step, parts = continuation(RunFolder.open(folder), prompt, settings, at)
    if not as_json:
        print_text(prompt)
        for text, _ in parts:
            print_text(text)
        print_text("\n")
        return
    drawn = list(parts)
    text = "".join(piece for piece, _ in drawn)
    ids = [token for _, token in drawn if token is not None]
    drawn_text = Continuation(prompt=prompt, text=text, tokens=ids, step=step, seed=seed)
    print_json(to_builtins(drawn_text))


def continuation(
    folder: RunFolder, prompt: str, settings: Settings, at: int | None
) -> tuple[int, Iterator[tuple[str, int | None]]]:
    """The generation's step, and (text, token) as drawn; the last may be text without a token.

    A character whose bytes are spread over several tokens comes with the last of them. Raises InvalidInput
    for wrong settings and where no generation can be read.
    """
    import torch

    from elinvar.checkpoint.restore import load_parameters
    from elinvar.data.store import open_store
    from elinvar.model.generate import generate
    from elinvar.model.transformer import Transformer

    experiment = folder.experiment()
    loaded = load_parameters(folder, at)
    for reason in loaded.rejected:
        say(f"note   passed over {reason}")
    parameters, step = loaded.parameters, loaded.step
    tokenizer = open_store(experiment.data).tokenizer
    # As in the run: equal threads are equal bits, so a seed draws the same text again.
    torch.set_num_threads(experiment.numerics.threads)
    model = Transformer(experiment.model, experiment.numerics)
    try:
        model.load_state_dict(parameters)
    except RuntimeError as error:
        raise InvalidInput(f"the generation at step {step} is not of this run's model: {error}") from error
    ids = generate(
        model,
        tokenizer.encode(prompt) or [tokenizer.end_of_document],
        settings.num_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        num_ids=tokenizer.vocab_size,
    )

    def parts() -> Iterator[tuple[str, int | None]]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in ids:
            if token == tokenizer.end_of_document:
                break
            yield decoder.decode(tokenizer.decode_bytes([token])), token
        yield decoder.decode(b"", final=True), None

    return step, parts()
