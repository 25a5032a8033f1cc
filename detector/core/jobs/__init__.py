"""What commands other than runs do: a module or folder for each."""
