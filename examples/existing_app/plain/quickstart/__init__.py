"""Logistic regression on digits, federated."""
