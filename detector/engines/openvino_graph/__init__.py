"""What is done to a graph for OpenVINO.

precise.py  nodes that stay float32, whatever precision the plugin is asked for
pairs.py    Q/DQ pairs that stand in the way of its kernels
"""
