"""IMPALA: an actor-critic whose learner corrects for lagging actors by V-trace (Espeholt et al. 2018)."""
