"""Elinvar: train language models so that how you compute never changes what you learn, and prove it."""

__version__ = "0.1.0"
