"""The loop of `silo join`: a task from policy to acknowledgement, its limits and its terminal. Imported by `join`
and `cli`.
"""
