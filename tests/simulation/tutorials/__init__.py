"""What each tutorial must have printed: ``check_NN.check(text)``, for outputs stored and fresh."""
