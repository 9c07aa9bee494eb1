"""Moving files in chunks: bounded, digested, a turn for each."""
