"""The hospital: sees images, trains, sends what its policy permits. Imports `common`, never `coordinator`."""
