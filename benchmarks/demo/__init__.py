"""The demo, measured."""
