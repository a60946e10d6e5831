"""The only room with SQL: database, migrations, records, states, roster, costs, cleanup. Everyone above may import
it; it imports `common` only.
"""
