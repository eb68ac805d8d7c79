"""GPU kernels, each with a plain torch reference beside it; importing this package imports neither torch nor
triton.

Knows nothing of models, sequences, pools or sockets: tensors in, tensors out.
"""
