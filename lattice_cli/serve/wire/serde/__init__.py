"""Reading JSON as Rust's serde does, because what lattice_serve takes and refuses is what serde takes and refuses.

Thread: any
"""
