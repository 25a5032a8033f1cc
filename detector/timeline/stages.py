"""The seven stages of a frame's life. The same names stand in JSON, NVTX, tables and verdicts."""

READ = "read"
PREPROCESS = "preprocess"
INFER = "infer"
HEAD = "head"
NMS = "nms"
ANNOTATE = "annotate"
WRITE = "write"

STAGES = (READ, PREPROCESS, INFER, HEAD, NMS, ANNOTATE, WRITE)
