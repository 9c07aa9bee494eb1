"""A run seen from outside: how far it is, and whether it is alive."""
