"""What the spans of a run say: activities, critical path, replay, what-if."""
