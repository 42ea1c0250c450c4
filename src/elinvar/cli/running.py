"""What `train` and `resume` share: carry a wanted run out, and say how it ended.

Noun: `carry_out`, which returns the exit code. PyTorch is imported here only after the warm process
that ranks are forked from has been started, so that both imports happen at the same time.
"""

import traceback
from shlex import quote

from elinvar.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    ElinvarError,
    RunFailed,
)
from elinvar.plan.plan import Plan, launcher_ranks, resolve_ranks
from elinvar.record.attempt import FAILED, INTERRUPTED, STOPPED
from elinvar.record.folder import EXPERIMENT, RunFolder
from elinvar.run.early import Quit, finish_undisturbed, stoppable
from elinvar.run.forkserver import warm_up
from elinvar.run.job import Outcome
from elinvar.run.prepare import Asked, Preparation, prepare, saved_step
from elinvar.run.progress import say
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.source import is_builtin


def carry_out(asked: Asked) -> int:
    """Run what was asked for; returns the exit code of a run that ended well or was stopped.

    Raises RunFailed, its last line saying `resumable from STEP`, where it failed after it began.
    """
    with stoppable("stopped before the first step; nothing is lost"):
        launched = launcher_ranks()
        if launched is not None and launched > 1:
            return _attached(asked)
        return _started(asked, resolve_ranks(asked.execution, launched))


def _started(asked: Asked, ranks: int) -> int:
    """On ranks of our own: this process is the only one, or their parent."""
    if ranks > 1:
        warm_up()
    preparation = _prepared(asked)
    if preparation.is_complete:
        return _nothing_to_do(preparation)
    try:
        if ranks > 1:
            from elinvar.run.launch import launch

            outcome = launch(preparation.job)
        else:
            from elinvar.run.attach import run_alone

            outcome = run_alone(preparation)
    except BaseException as error:  # noqa: BLE001  # whatever ended the attempt, its end is recorded
        raise _ended(preparation, error) from None
    return _report(preparation, outcome)


def _nothing_to_do(preparation: Preparation) -> int:
    preparation.lock.release()
    if not preparation.job.quiet:
        say(f"done   step {saved_step(preparation.folder)} is reached already; nothing to do")
    return EXIT_OK


def _prepared(asked: Asked) -> Preparation:
    """Prepare, and say what will be done. Where the disk refuses even that, a run that exists is resumable."""
    try:
        preparation = prepare(asked)
    except RunFailed as error:
        if asked.folder is None or not (asked.folder / EXPERIMENT).exists():
            raise
        raise _resumable(error, RunFolder(asked.folder)) from None
    _announce(preparation)
    return preparation


def _attached(asked: Asked) -> int:
    """As a rank of a launcher; only rank 0 speaks and writes."""
    from elinvar.run.attach import run_attached

    prepared: list[Preparation] = []

    def on_rank_0() -> Preparation:
        prepared.append(_prepared(asked))
        return prepared[0]

    try:
        outcome = run_attached(on_rank_0)
    except BaseException as error:
        if not prepared:
            raise
        raise _ended(prepared[0], error) from None
    if outcome is None:
        return _nothing_to_do(prepared[0]) if prepared else EXIT_OK
    if not prepared:
        return _exit_code(outcome)
    return _report(prepared[0], outcome)


def _ended(preparation: Preparation, error: BaseException) -> BaseException:
    """Close the attempt of a run that failed; the error to raise, which says from where to go on."""
    finish_undisturbed()
    if isinstance(error, KeyboardInterrupt):
        error = Quit("interrupted before the first step")
    if not isinstance(error, ElinvarError):
        if not isinstance(error, Exception):
            return error
        # A defect of ours, or of a library: its traceback, and still the line that says how to go on.
        say("".join(traceback.format_exception(error)).rstrip())
        error = RunFailed(f"{type(error).__name__}: {error}")
    message = error.message
    reason = {EXIT_STOPPED: STOPPED, EXIT_INTERRUPTED: INTERRUPTED}.get(error.exit_code, FAILED)
    try:
        preparation.end(None, message, reason)
    except ElinvarError as second:
        message = f"{message}; and its end could not be recorded: {second.message}"
    if error.exit_code not in (RunFailed.exit_code, EXIT_INTERRUPTED, EXIT_STOPPED):
        return error
    return _resumable(type(error)(message, error.lines), preparation.folder)


def _resumable(error: ElinvarError, folder: RunFolder) -> ElinvarError:
    """The same error, its last line saying from where the run can go on."""
    step = saved_step(folder)
    last = f"resumable from {step}" if step else "no generation was saved: it starts anew at step 0"
    again = f"to go on: elinvar resume {quote(str(folder.path))}"
    return type(error)(error.message, [*error.lines, again, last])


def _announce(preparation: Preparation) -> None:
    """The plan in one line, and where the run lives."""
    if preparation.job.quiet:
        return
    plan = preparation.plan
    say(
        f"plan   {plan.num_parameters:,} parameters · {plan.tokens_per_step:,} tokens/step · "
        f"{preparation.job.until} steps · {plan.ranks} rank{'s' * (plan.ranks > 1)} · "
        f"peak ~{plan.memory.num_bytes * (plan.ranks if plan.device == 'cpu' else 1) / 2**20:,.0f} MiB · "
        f"{_promise(plan)}"
    )
    for warning in plan.warnings:
        say(f"note   {warning}")
    for note in preparation.notes:
        say(f"note   {note}")
    state = "new" if preparation.is_new else "continued"
    say(f"run    {preparation.folder.path} ({state}) · experiment {experiment_digest(plan.experiment)[:12]}")


def _promise(plan: Plan) -> str:
    return f"{plan.claim.relation} on any number of ranks, workers, restarts"


def _report(preparation: Preparation, outcome: Outcome) -> int:
    """Close the attempt, say how it ended and what can be done next."""
    finish_undisturbed()
    preparation.end(outcome)
    folder, quiet = quote(str(preparation.folder.path)), preparation.job.quiet
    stopped = outcome.reason in (STOPPED, INTERRUPTED)
    words = {STOPPED: "stopped", INTERRUPTED: "interrupted"}.get(outcome.reason, "saved")
    lines = [f"{words:<6} step {outcome.step} · update digest {outcome.update_digest[:16]}"]
    lines += _held_out(preparation)
    if stopped:
        lines.append(f"resumable from {outcome.saved_step}: elinvar resume {folder}")
    else:
        lines += [_write_page(preparation), f'try    elinvar sample {folder} "The "']
    if not quiet:
        for line in lines:
            say(line)
    return _exit_code(outcome)


def _held_out(preparation: Preparation) -> list[str]:
    """The last held-out loss per byte, beside what compressors reach on the text that comes with Elinvar."""
    from elinvar.report.charts import COMPRESSORS

    rows, _ = preparation.folder.metrics()
    found = [row.evaluation for row in rows if row.evaluation is not None]
    if not found:
        return []
    beside = ""
    if is_builtin(preparation.job.experiment.data.source):
        beside = " (" + ", ".join(f"{name} {bits:.3f}" for name, bits in COMPRESSORS.items()) + ")"
    return [f"learned held-out text takes {found[-1].bits_per_byte:.3f} bits per byte{beside}"]


def _write_page(preparation: Preparation) -> str:
    """Write the report; the line that names it. A page that cannot be written takes nothing from the run."""
    from elinvar.record.durable import write_whole
    from elinvar.report.page import page

    path = preparation.folder.path / "report.html"
    try:
        write_whole(path, page(preparation.folder.path).encode())
    except OSError as error:
        again = f"elinvar report {quote(str(preparation.folder.path))}"
        return f"note   the report was not written: {error.strerror or error}; to write it: {again}"
    return f"report {path}"


def _exit_code(outcome: Outcome) -> int:
    return {STOPPED: EXIT_STOPPED, INTERRUPTED: EXIT_INTERRUPTED}.get(outcome.reason, EXIT_OK)
