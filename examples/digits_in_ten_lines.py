"""Digits in ten lines: twenty labels at a hub, unlabelled images at three silos, and two methods compared.

    python digits_in_ten_lines.py

Takes a minute or two and writes accuracy.png.
"""

import semisilo

comparison = semisilo.compare(
    methods=["self_training", {"name": "semifl", "coordinator_epochs": 40}],  # 40: for few labels
    data="digits", silos=3, num_labelled=20, rounds=6,
    tables={"method": {"local_epochs": 3, "lr": 0.03, "momentum": 0.9},
            "augmentation": {"without": ["Invert", "Solarize"]}})  # these make other pictures than a pen can
print(comparison)
comparison.plot().savefig("accuracy.png")
