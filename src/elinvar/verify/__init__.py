"""Proof: the same experiment under other executions, compared bit by bit."""
