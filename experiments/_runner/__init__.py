"""What the commands share: from YAML to a run, its folder, its tables. Nothing here is a command."""
