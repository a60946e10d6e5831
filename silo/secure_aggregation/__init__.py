"""The silo's half of secure aggregation: whom it trusts, what it answers in each step of a sum, what it keeps of it.

No network; the steps are pure, and `store` writes their state down before an answer leaves. Site and agent import it.
"""
