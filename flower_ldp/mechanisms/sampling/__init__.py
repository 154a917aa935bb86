"""What several mechanisms draw with: exact coins, noise, subsets and top sets."""
