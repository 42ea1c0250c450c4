"""Ranks: who holds what, and how data moves between them. Knows nothing of training."""
