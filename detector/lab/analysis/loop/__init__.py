"""What the spans of a run say: activities, critical path; and what runs in turns say."""
