"""The page of a silo, for the people of the hospital: what the silo's folder says as JSON and as tables, and approving
or declining studies behind a token. Only the command imports it; it asks neither the agent nor the coordinator.
"""
