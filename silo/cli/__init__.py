"""The commands of `silo`, a file for each group: they parse, call and print. Nothing imports it but the console
script.
"""
