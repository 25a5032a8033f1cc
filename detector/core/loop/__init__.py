"""Order, threads, spans. The loop receives its parts and names none of them."""
