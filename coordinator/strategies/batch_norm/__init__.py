"""Static batch-norm statistics at the coordinator: who measures them, their trial, and what they do to classes.

Imports `common` and `semisilo.coordinator.strategies.parts` alone.
"""
