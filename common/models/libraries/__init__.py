"""Networks that other packages build, by name, never with weights of the internet. Imported by `common.models`."""
