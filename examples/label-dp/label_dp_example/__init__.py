"""Training on labels that each client randomizes once: a Flower app."""
