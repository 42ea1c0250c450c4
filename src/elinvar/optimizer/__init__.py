"""How gradients become new parameters: one optimizer a file, the schedule, and clipping."""
