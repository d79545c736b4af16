"""What makes MLX fast where its wheel is not.

Thread: any
"""
