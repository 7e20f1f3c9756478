"""R2D2: recurrent Q-learning from prioritized sequences (Kapturowski et al. 2019)."""
