"""Order, threads, spans. The loop is handed its parts and names none of them."""
