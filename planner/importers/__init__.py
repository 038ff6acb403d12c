"""Files of others in, networks and profiles out: one file per format."""

__all__ = ["graph_profile", "layer_trace", "measured", "text"]
