"""What a request may cost, counted and not timed."""
