"""SignDS on image classification: a Flower app."""
