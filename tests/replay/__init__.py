"""Proof of the replay package."""
