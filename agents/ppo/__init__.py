"""PPO: an actor-critic that takes several clipped steps on each batch (Schulman et al. 2017), with lagging actors."""
