"""What is computed: the Agent record, shared networks and sequence helpers, one folder for each algorithm."""
