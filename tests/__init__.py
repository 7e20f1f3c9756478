"""Proof; the folders mirror the tree."""
