"""An experiment in a bucket."""
