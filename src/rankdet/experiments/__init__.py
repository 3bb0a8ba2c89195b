"""One module for each table and figure of the paper, and for its theory; all may use the losses."""
