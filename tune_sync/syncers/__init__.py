"""What moves directories: the base class and the syncers that come with tune_sync."""
