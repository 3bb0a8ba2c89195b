"""Annotations of any format, read with limits and judged by one table of rules; no torch here."""
