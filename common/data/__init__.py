"""Images: their form, sets of them in memory, and the readers of a study's sources. Imported by both sides; imports
neither grpc nor cryptography.
"""
