"""What the hospital keeps and permits: home folder, identity, memory, policy, disclosures, working hours. Everyone
at the silo may import it.
"""
