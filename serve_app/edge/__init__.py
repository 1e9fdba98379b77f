"""Input and output: each module wraps one outside thing."""
