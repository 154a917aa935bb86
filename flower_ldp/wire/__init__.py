"""What crosses the network: proposals, model layouts and packed reports; strict both ways."""
