"""Events of cameras and objects, and their receivers.

No receiver slows the loop: ``send`` only queues the event.
"""
