"""The silo's half of secure aggregation: whom it trusts, and what it answers in each step of a sum.

No network and no disk: whoever keeps the state writes it down before an answer leaves. The agent may import it.
"""
