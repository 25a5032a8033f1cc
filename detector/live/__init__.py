"""What becomes of a camera's detections: rows by day, recordings, events and who is told of them.

base.py           the nouns: events and the figures of a live run
hub.py            what watchers see: the newest pictures, figures, the last events
watched_files.py  an ordinary run over files, as a watcher sees it
"""
