"""In the place of torchvision: what the apps make of an image."""
