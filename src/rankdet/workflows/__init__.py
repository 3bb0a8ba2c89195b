"""From settings or a run directory to results: what the commands do."""
