"""The user's own syncer: an experiment kept on the driver's node, and copied from there."""
