"""A directory that all nodes see."""
