"""Arithmetic with one result: streams, the fold, norms, digests and the fingerprint."""
