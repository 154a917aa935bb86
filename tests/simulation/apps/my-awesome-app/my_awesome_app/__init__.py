"""my-awesome-app: A Flower / PyTorch app."""
