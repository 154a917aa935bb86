"""What is installed of this package and of what it needs: a list of it, and whether it is whole."""
