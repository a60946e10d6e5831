"""Networks of somebody's own: a file of Python that a machine's owner permits, or one handed over from Python. Imported
by `common.models`, and by whoever gives or permits one. Loads no torch by itself.
"""
