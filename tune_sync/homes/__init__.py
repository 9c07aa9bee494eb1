"""Where an experiment is kept: the destination, and the order in which things become true there."""
