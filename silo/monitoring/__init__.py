"""What a site sees of its own silo: `silo status`, and numbers for the site's Prometheus. Nothing here is sent to the
coordinator. Imported by `cli`, `page` and `join`.
"""
