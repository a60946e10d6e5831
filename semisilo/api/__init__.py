"""Simulating and comparing from Python: what `import semisilo` offers. Imported by notebooks and `semisilo.cli`."""
