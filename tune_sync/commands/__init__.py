"""One module for each sub-command of `tune-sync`; `tune_sync.cli` finds them."""
