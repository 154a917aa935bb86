"""Private training through the gate: the model that it made leaves, and nothing else."""
