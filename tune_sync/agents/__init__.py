"""The Ray actors of a run, and how processes reach them."""
