"""Pure decisions: standard library only, no loop, clock, randomness or logging."""
