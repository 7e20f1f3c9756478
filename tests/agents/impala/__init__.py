"""Tests of agents/impala/."""
