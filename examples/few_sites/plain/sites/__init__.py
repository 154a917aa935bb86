"""A small network on breast cancer, federated over few sites."""
