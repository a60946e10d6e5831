"""Durable files: write, fsync, rename. Imported wherever something must survive a kill; imports nothing above
itself.
"""
