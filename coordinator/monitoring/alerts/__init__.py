"""What needs a person: found in the ledger, shown by the page, told to a webhook by `coordinator serve`. The
settings are table [alerts] of federation.toml (`federation/alerts_table.py`)."""
