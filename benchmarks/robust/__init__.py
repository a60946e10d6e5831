"""What lying silos cost under each rule of [robust]: `make bench-robust`."""
