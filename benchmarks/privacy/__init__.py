"""Accuracy against epsilon."""
