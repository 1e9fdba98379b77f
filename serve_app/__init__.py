"""Grix: the request path (pure core, thin edges) and the command line."""
