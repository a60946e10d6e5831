"""How a silo enters a federation, renews its certificate and leaves. Imported by `agent` and `cli`; may import
`link` and `site`.
"""
