"""What is still to be sent, and in which order; state machines without threads."""
