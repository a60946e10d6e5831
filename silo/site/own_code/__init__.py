"""Code of this site's own choosing that studies may build their networks with. Imported by `silo.cli`."""
