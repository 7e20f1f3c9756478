"""What is stored and how it travels: specs, tables, servers, writers, datasets, priorities, variables, metrics."""
