"""Ape-X DQN: distributed prioritised replay for a double, dueling, n-step DQN (Horgan et al. 2018)."""
