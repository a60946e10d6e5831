"""A silo's compute process: what it is asked (`messages`, without torch), and what it does. The agent, `silo check` and
the simulation may import it.
"""
