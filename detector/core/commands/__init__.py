"""The commands of the core, one file each: parse, call, print, return an exit code."""
