"""Folders to start from: a project, a method of one's own. What `semisilo new` writes. Imported by `semisilo.cli`.

Loads no torch: these are texts.
"""
