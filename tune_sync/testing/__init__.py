"""Stores that fail, lose and crash, and contract suites, for tests of your own stores."""
