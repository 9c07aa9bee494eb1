"""Measurements of tune_sync on isolated hosts, always beside what they compare with."""
