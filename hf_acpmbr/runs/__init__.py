"""Runs over files: independent shards that any number of processes make without waiting for each other."""
