"""Federated clustering, watched through private predictions: a Flower app."""
