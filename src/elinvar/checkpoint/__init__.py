"""Generations: the state at an update boundary, written so that it is there whole or not at all."""
