"""Parameter servers: how many, where, every tensor's place, workers and shares; with and without a barrier."""
