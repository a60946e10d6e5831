"""Aggregation rules that hold when some silos lie, as pure functions of updates, their inner products or their losses.

N updates, each a vector of D numbers: what a silo has returned, flat. A rule that gives one weight to a whole update
needs the N x N inner products alone; those that look at every coordinate take blocks of coordinates, one after another.
So none of them needs all updates in memory at once.

Imports torch and nothing of semisilo.
"""
