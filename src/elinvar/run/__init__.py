"""A run from start to end: launching ranks, the loop, stopping, recovering, recording."""
