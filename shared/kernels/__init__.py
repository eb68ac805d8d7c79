"""GPU kernels, each with a plain torch reference beside it; importing this package imports neither torch nor
triton.

Knows nothing of models, sequences, pools or sockets: tensors in, tensors out. Kernels run on the current
stream of the current device, which must be that of the tensors.
"""
