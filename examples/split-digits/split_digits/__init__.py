"""Two parties hold half of each image, and a server the labels."""
