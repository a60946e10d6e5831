"""What people read: pages from templates, rows of settings. It imports nothing of ours; every room may import it."""
