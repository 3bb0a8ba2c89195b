"""`rankdet check` and `rankdet view`: what is wrong with a data set, and what is in it."""
