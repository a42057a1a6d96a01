"""The engines jobs are submitted to, one module each; each alone starts its engine's programs."""
