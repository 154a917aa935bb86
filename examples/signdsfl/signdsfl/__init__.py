"""SignDS-FL as a Flower baseline: training from privatized dimension numbers and a sign."""
