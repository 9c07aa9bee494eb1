"""What `examples/demo.py` is made of: hosts, a search, a check and a restore."""
