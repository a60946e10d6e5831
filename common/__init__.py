"""What both sides compute the same way. Imports neither `coordinator` nor `silo`."""

__version__ = "0.1.0"
