"""Measures of a model on labelled images, and which round they select: numbers from counts and scores, with numpy
alone, so that light processes and people without torch have them too. Imported by both sides; knows no model, no file.
"""
