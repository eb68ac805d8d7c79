"""The Triton kernels. Only these modules import triton; everything above them works without it."""
