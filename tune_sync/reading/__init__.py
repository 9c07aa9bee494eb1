"""Many readers of one checkpoint: each node brings it once, and one of them from the store."""
