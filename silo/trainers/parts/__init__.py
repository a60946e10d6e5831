"""What the silo halves of several methods share: the model of a task, and the difference that goes back.

Imports `common` alone; trainers import it, and nobody else but the tests.
"""
