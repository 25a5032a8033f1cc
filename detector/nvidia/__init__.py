"""What NVIDIA's driver and TensorRT's files say, for the engines, the models and the doctor.

driver.py   GPUs and versions, through ctypes: needs no package and starts nothing that may crash
log.py      TensorRT's log, kept: it reports failures there and returns None
plan.py     plan files: what is in front of them, and their tensors
"""
