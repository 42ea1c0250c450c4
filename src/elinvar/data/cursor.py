"""Where a run stands in its data: the next position, and the data set that it counts in.

Noun: `Cursor`. It names positions consumed by finished steps, never what was fetched ahead, and it
knows no ranks, so it is the whole of what a resume needs to go on.
"""

from msgspec import Struct

from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest


class Cursor(Struct, frozen=True, kw_only=True):
    """`position` is the next one of the order of `dataset`; a new run starts at 0."""

    dataset: Digest
    position: int

    def next_step(self, dataset: Digest, sequences_per_step: int) -> int:
        """The step that consumes this position (the first is 1) of a run on `dataset`.

        Raises Mismatch where the cursor counts in another data set, InvalidInput where the position
        lies inside a step.
        """
        if self.dataset != dataset:
            raise Mismatch(
                "the data are not those that the run has learned from so far",
                [
                    f"data set of the cursor {self.dataset}",
                    f"data set given         {dataset}",
                    "likely the source changed, or another release of the tokenizers library trained the tokenizer",
                ],
            )
        step, rest = divmod(self.position, sequences_per_step)
        if rest or self.position < 0:
            raise InvalidInput(
                f"the cursor stands at position {self.position}, inside a step of {sequences_per_step} sequences",
                [f"a step begins at a multiple of {sequences_per_step}"],
            )
        return step + 1
