"""How fast a run went the last time, from its record.

Noun: `Rate` (in `plan.py`). Only an attempt with the execution that is planned for is asked: a rate
from other ranks would have to be guessed. The first steps of an attempt warm up and do not count.
"""

from statistics import median

from elinvar.plan.plan import Rate
from elinvar.record.folder import RunFolder
from elinvar.spec.explain import counted

WARM_UP_STEPS = 3
FEWEST_STEPS = 5


def measured_rate(folder: RunFolder, ranks: int) -> Rate | None:
    """The median tokens per second of the newest attempt of `folder` on `ranks` ranks.

    None where no such attempt has at least five steps after its warm-up.
    """
    rows, _ = folder.metrics()
    for attempt in reversed(folder.attempts()):
        if attempt.start.execution.get("ranks") != ranks:
            continue
        timed = [row for row in rows if row.attempt == attempt.attempt and row.step_time_s > 0]
        timed = timed[WARM_UP_STEPS:]
        if len(timed) >= FEWEST_STEPS:
            return Rate(
                tokens_per_s=median(row.tokens / row.step_time_s for row in timed),
                because=f"as fast as attempt {attempt.attempt}: median of {len(timed)} steps on "
                + counted(ranks, "rank"),
            )
    return None
