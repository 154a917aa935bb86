"""A Flower app in which five hospitals train together, and no patient can be told from it."""
