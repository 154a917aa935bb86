"""Clients that misbehave, each in its own way."""
