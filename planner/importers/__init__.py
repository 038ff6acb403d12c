"""Files of others in, networks and profiles out: one file, or one package, per format."""
