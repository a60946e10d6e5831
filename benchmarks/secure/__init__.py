"""What secure aggregation costs a silo and the coordinator, beside the plain path in the same run."""
