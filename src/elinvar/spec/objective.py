"""What is minimised: an objective that yields a sum of weighted losses and a sum of weights."""

from msgspec import Struct


class NextToken(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="next_token"
):
    """Cross entropy of the next token in nats, every target token with weight 1."""


Objective = NextToken
