"""Differential privacy: what noisy steps spend, noise from a secret, and sums of gradients clipped image by image."""
