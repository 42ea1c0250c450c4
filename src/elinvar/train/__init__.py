"""One step: microbatches become gradients, gradients become the next state."""
