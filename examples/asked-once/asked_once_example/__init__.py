"""A Flower app in which each client is asked once: the run's total is one report's epsilon."""
