"""Where simulated silos train: this process, processes of this machine, or a Ray cluster. Imported by simulations."""
