"""Parts of `benchmarks.gpu`: kernels beside their references, ceilings and other people's kernels."""
