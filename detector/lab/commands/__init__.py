"""The commands of the lab. Each file adds the command of its name."""
