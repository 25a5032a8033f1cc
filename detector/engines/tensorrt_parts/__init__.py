"""Parts of the engine trt.

memory.py      device memory behind one small interface; pycuda_memory, torch_memory, cuda_python_memory provide it
settings.py    the engine's own options
building.py    graph -> plan; batches.py makes the graph take a range of batches, monitor.py tells how far it is
key.py         all that makes another plan necessary
running.py     a request: slot, context, stream, events
inspection.py  what TensorRT made of the layers
profiling.py   what each of them takes
"""
