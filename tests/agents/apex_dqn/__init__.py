"""Tests of agents/apex_dqn/."""
