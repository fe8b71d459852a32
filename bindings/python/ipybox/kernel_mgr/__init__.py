"""Kernels alone: a gateway that starts them, and clients that execute code in them."""
