"""Compare detections with labels: average precision, and the accuracy of track ids."""
