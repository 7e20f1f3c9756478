"""Rendered runs as containers with addresses of their own, on a podman network."""
