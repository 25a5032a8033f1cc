"""Training of the default model: data, augmentation, teacher, network, assignment, loss, optimiser, loop, export."""
