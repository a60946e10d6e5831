"""What a model is worth on labelled images, and which round that speaks for: numbers from counts and scores, with numpy
alone, so that light processes and people without torch have them too. Imported by both sides; knows no model, no file.
"""
