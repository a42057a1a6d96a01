"""Where the time of a build went, and what a build is worth."""
