"""The frame loops, plain and threaded. They receive their parts and name no concrete one."""
