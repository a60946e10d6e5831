"""The report of a study as one HTML file with its figures. A renderer: it may import `monitoring` and what lies
below.
"""
