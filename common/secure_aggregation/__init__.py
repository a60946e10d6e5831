"""Secure aggregation: the coordinator learns the sum of the silos' updates, and no update by itself.

Tests: tests/common/secure_aggregation.
"""
