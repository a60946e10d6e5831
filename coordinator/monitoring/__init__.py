"""The one read model of a federation: what silos do, what studies became, what they cost. Renderers (page, report,
export, trackers) import it and compute nothing themselves; it imports the rounds and the ledger, and no renderer.
"""
