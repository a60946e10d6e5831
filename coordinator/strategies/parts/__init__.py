"""What the coordinator halves of several methods share: averaging, labelled training, weights.

Imports `common` alone; strategies import it, and nobody else but the tests.
"""
