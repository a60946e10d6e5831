"""What this site has agreed to: cards of studies, signed before their first task, and every task held against them.

Agent, check and cli import it; it knows neither the network nor the policy's file.
"""
