"""What commands do beyond a run, one module or folder for each of them."""
