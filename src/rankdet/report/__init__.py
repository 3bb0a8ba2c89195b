"""The report: one HTML page about finished runs, from results.json and metrics.jsonl alone."""
