"""Tests between real processes that only share a network."""
