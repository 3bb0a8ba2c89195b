"""Our losses inside of other people's code."""
