"""The commands of the lab. Each file adds one command, which has the name of the file."""
