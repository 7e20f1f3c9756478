"""Measurements, as ratios of two sides in one run."""
