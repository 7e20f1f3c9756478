"""Who runs where: environments, role loops, the Launchpad program and the ways to start it."""
