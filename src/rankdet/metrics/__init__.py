"""How good detections are."""
