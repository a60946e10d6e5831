"""The hub: decides, remembers and averages. Imports `common`, never `silo`."""
