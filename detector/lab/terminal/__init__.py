"""Print the results of the lab's commands."""
