"""What the coordinator's process with torch does, and the typed messages to it. The light process imports `messages`
alone, which needs no torch; nothing here imports the round engine or anything above it."""
