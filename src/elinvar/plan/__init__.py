"""What will happen, before it happens: ownership, memory, arithmetic, time, and the claim."""
