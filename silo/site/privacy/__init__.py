"""Differential privacy at this site: what it has spent, and what it asks of its images."""
