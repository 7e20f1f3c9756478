"""The losses' shapes, as their annotations say them, are checked at run time in these tests."""

from jaxtyping import install_import_hook

# Before a test imports them. pytest imports no test of agents/ before this file.
install_import_hook(["agents.impala.loss", "agents.apex_dqn.loss"], "beartype.beartype")
