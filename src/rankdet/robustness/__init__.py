"""How much a detector suffers from patches, noise and attacks on its images."""
