"""Named tensor groups as files: written, read, checked, held. Imported by both sides; knows nothing of the network
that carries them.
"""
