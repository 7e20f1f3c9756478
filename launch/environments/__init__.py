"""Environments behind one protocol: EnvPool, Gymnasium and dm_env, vectorised, in one endless stream of steps."""
