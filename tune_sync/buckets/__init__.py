"""Buckets: objects below a root prefix, with engines from several libraries."""
