"""What the parts of the demo have in common. Imports nothing, so that it speaks at once."""

from __future__ import annotations

NAME = "demo"
TRIAL_COUNT = 8
REPORT = "demo_report.json"  # in HOME: what the search says it did, for the check afterwards
# A line of the search, and what is in one of each trial that Ray has lost with its host.
BEGINS = "the search begins; its first trials start once both hosts have processes for them"
LOST = "is lost with its host"
