"""Buckets: objects below a root prefix of an object store, with engines from several libraries."""
