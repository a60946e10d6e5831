"""Faults that a running federation is put through, and how soon it goes on."""
