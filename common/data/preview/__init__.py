"""What a source of images holds, as `coordinator data` and `silo data` show it. Imported by both sides' commands."""
