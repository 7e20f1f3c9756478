"""The losses' shapes, as their annotations say them, are checked at run time in these tests."""

from jaxtyping import install_import_hook

# Before a test imports them. pytest imports no test of agents/ before this file.
LOSSES = [f"agents.{agent}.loss" for agent in ("apex_dqn", "impala", "ppo", "r2d2")]
install_import_hook(LOSSES, "beartype.beartype")
